package main

import (
	"fmt"
	"regexp"
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
	for _, u := range unwantedOnes {
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
