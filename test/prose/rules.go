package main

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// longest is the number of words that no sentence may exceed.
const longest = 40

// unwanted is an expression that the project doesn't use, and what to write instead.
type unwanted struct {
	pattern *regexp.Regexp
	instead string
}

var unwantedOnes = []unwanted{
	{expression(`anew`), "again"},
	{expression(`in step`), "synchronized, or up to date"},
	{expression(`settled`), "done, or complete"},
	{expression(`of before`), "previous"},
	{expression(`the way out`), "what to do"},
	{expression(`theirs`), "name the owner"},
	{expression(`ours`), "Signalbox's"},
	{expression(`somebody`), "name who"},
	{expression(`tells whether`), "reports whether"},
	{expression(`hangs together`), "works"},
	{expression(`lets? go(?: of)?`), "release"},
	{expression(`mends?|mended`), "fix"},
	{expression(`can't be[.;,:)]`), "is invalid"},
	{expression(`for ever`), "forever"},
	{expression(`foretells?|foretold`), "predict"},
	{expression(`easy|easily|simply|just`), "leave it out"},
}

// unwantedInStrings are those that users have read as riddles in errors, conditions and events.
var unwantedInStrings = []unwanted{
	{expression(`brings?|bringing|brought`), "migrate, or move"},
	{expression(`(?:been |not |all )?made (?:yet|again)|making`), "create"},
	{expression(`(?:comes?|came) again|before it come`), "is created again, or precedes"},
	{expression(`stands? for`), "represents"},
	{expression(`goes before|wins?`), "takes precedence"},
	{expression(`(?:says?|said) nothing(?: of)?|was said|said to|it says|it said`), "has no …, or sets nothing"},
	{expression(`can't (?:be told|tell)|told to`), "is unknown, or name the request"},
	{expression(`(?:gives?|given|giving)(?: \w+){0,2} back`), "release"},
	{expression(`looks?(?:ing)? at`), "read, or check"},
	{expression(`nobody|anybody`), "name who doesn't"},
	{expression(`was changed to what|to what can't|with the one`), "name it: is invalid, the previous one"},
	{expression(`be had|to be had`), "name what is missing"},
}

func expression(of string) *regexp.Regexp {
	tail := `\b`
	if strings.HasSuffix(of, "]") {
		tail = ""
	}
	return regexp.MustCompile(`(?i)\b(?:` + of + `)` + tail)
}

// findings are the rules that a passage breaks.
func (p passage) findings() (all []string) {
	for _, sentence := range sentences(p.text) {
		if n := words(sentence); n > longest {
			all = append(all, fmt.Sprintf("%s:%d: a sentence of %d words; %d are the limit: %s", p.file, p.line, n, longest,
				sentence))
		}
	}
	rules := unwantedOnes
	if p.isString {
		rules = slices.Concat(unwantedOnes, unwantedInStrings)
	}
	for _, u := range rules {
		if found := u.pattern.FindString(withoutCode(p.text)); found != "" {
			all = append(all, fmt.Sprintf("%s:%d: %q; write: %s", p.file, p.line, found, u.instead))
		}
	}
	return all
}

var code = regexp.MustCompile("`[^`]*`|\"[^\"]*\"")

// withoutCode leaves out what is code or quoted.
func withoutCode(text string) string { return code.ReplaceAllString(text, "…") }

// end is where a sentence ends: the next one begins with a capital letter, a number, code or a bracket.
var end = regexp.MustCompile("[.!?][)\"”]*\\s+([A-Z0-9`(\\[\"“])")

// sentences splits a passage.
func sentences(text string) (all []string) {
	text = strings.Join(strings.Fields(text), " ")
	for {
		at := end.FindStringSubmatchIndex(text)
		if at == nil {
			break
		}
		all = append(all, strings.TrimSpace(text[:at[2]]))
		text = text[at[2]:]
	}
	if text != "" {
		all = append(all, text)
	}
	return all
}

// words counts what a reader reads as one word each: code and what is quoted count as one.
func words(sentence string) int { return len(strings.Fields(withoutCode(sentence))) }
