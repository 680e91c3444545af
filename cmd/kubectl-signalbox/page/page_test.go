package page

import (
	"io/fs"
	"regexp"
	"strings"
	"testing"
	"time"
)

const evil = "<script>alert(1)</script>\x1b[31m\u202e"

// views returns all views, with texts of others in each place.
func views() []View {
	at := time.Date(2026, 11, 29, 10, 0, 0, 0, time.UTC)
	bar := NewBar(evil, 10, 5,
		[]Part{{Amount: 3, Class: "used", Title: evil, Href: "/x"}, {Amount: 2, Class: "free", Title: evil}})
	quota := []Quota{{Flavor: evil, Resource: evil, Nominal: "8", Used: "3", Others: []string{"2 lent"}, Bar: bar}}
	waits := []Waiting{
		{Place: 1, Namespace: evil, Name: evil, Href: JobPath(evil, evil), Since: at, Cause: evil, Start: &at},
		{Name: evil},
	}
	return []View{
		Now{Flavors: quota, Planned: &at, Incomplete: true, Preemptions: []Preemption{{evil, evil, evil, evil}},
			Cohorts: []Cohort{{Name: evil, Queues: []Queue{{Name: evil, Quotas: quota, Waiting: waits, More: 3}}}}},
		Jobs{
			Rows:   []Job{{Namespace: evil, Name: evil, State: evil, Created: at}},
			Search: evil,
			States: []string{evil},
			Next:   Link("/trainjobs", "search", evil),
		},
		Line{
			Axis:    Axis{at, at.Add(6 * time.Hour), at.Add(time.Hour)},
			Known:   false,
			Why:     evil,
			Choices: []Choice{{Text: evil, Href: "/"}},
			Timelines: []Timeline{{Flavor: evil, More: 1, Lanes: []Lane{{Name: evil, Href: "/x", Spans: []Span{
				{Class: "past", From: at, To: at.Add(time.Hour), Title: evil, Break: evil}}}}}},
		},
		TrainJob{
			Namespace: evil,
			Name:      evil,
			State:     evil,
			Cause:     Cause{evil, evil, evil, &at, []string{evil}},
			Standing:  Standing{evil, evil, 5, 1, 2, &at},
			Actions:   []Action{{evil, evil, "/x"}},
			Details: Details{
				After:    []After{{Name: evil, Href: "/x", When: evil, State: evil}},
				Flavors:  []Short{{Flavor: evil, Unsuitable: evil}},
				Ahead:    waits,
				Clusters: []Elsewhere{{evil, evil, evil, evil, evil, []Pod{{Rank: evil}}}},
				History:  []Moment{{at, evil, evil}},
				Pods: []Pod{
					{Rank: evil, Name: evil, Phase: evil, Node: evil, Rack: evil, Logs: "/x"},
				},
				Progress: new(int32(40)),
				Curves: []Curve{
					{Name: evil, Points: []Point{{at, 1}, {at.Add(time.Minute), 2}}, Marks: []Mark{{at, "checkpoint", evil}}},
				},
			},
		},
		Confirm{Namespace: evil, Name: evil, Verb: "stop", Consequences: []string{evil}},
		Logs{Namespace: evil, Name: evil, Rank: evil, Ranks: []string{evil}, Containers: []Log{{evil, evil}}},
		WhatIf{
			Form:       Form{Manifest: evil, Name: evil},
			Problem:    evil,
			Names:      []string{evil},
			Queues:     []string{evil},
			Priorities: []string{evil},
			Changed:    evil,
			Answers: []Answer{
				{
					Namespace: evil,
					Name:      evil,
					Verdict:   evil,
					Text:      evil,
					Message:   evil,
					Ahead:     []string{evil},
					Start:     &Start{at, at, at, evil},
					Changes:   []string{evil},
				},
			},
		},
		Nodes{Groups: []Group{{Name: evil, Nodes: []Node{{Name: evil, State: evil, Bar: bar, Total: evil}}}},
			Avoided: []Avoided{{Node: evil, Reason: evil, Message: evil, Time: at, Tainted: true}}},
		Teams{
			Columns: []string{evil},
			Rows:    []TeamRow{{[]string{evil}, bar}},
			Choices: []Choice{{Text: evil, Chosen: true}},
			Export:  Link("/teams.csv", "by", evil),
		},
		Teams{Problem: evil},
		Problem{Text: evil},
	}
}

// TestUntrusted holds that what others have written is text in each view, and that nothing is inline, which the
// Content-Security-Policy would not allow.
func TestUntrusted(t *testing.T) {
	inline := regexp.MustCompile(`(?i)<script|<style|\sstyle=|\son\w+=|javascript:`)
	for _, view := range views() {
		var text strings.Builder
		at := time.Now()
		content := Content{Title: evil, Cluster: evil, Namespace: evil, Path: "/x", Missing: []string{evil}, Lost: &at,
			Said: evil, View: view}
		if err := content.Write(&text); err != nil {
			t.Errorf("%s: %v", view.template(), err)
			continue
		}
		shown := text.String()
		if found := inline.FindString(shown); found != "" {
			t.Errorf("%s has %q", view.template(), found)
		}
		if strings.ContainsAny(shown, "\x1b\u202e") {
			t.Errorf("%s shows control characters", view.template())
		}
	}
	var frame strings.Builder
	if err := (Frame{Release: evil, Problem: evil}).Write(&frame); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(frame.String(), "<script>") || strings.Contains(frame.String(), " style=") ||
		strings.ContainsAny(frame.String(), "\x1b\u202e") {
		t.Error(frame.String())
	}
}

func TestBar(t *testing.T) {
	jobs := make([]Part, 0, 1010)
	for range 1000 {
		jobs = append(jobs, Part{Amount: 1, Class: "t1", Title: "one", Href: "/x"})
	}
	many := NewBar("many", 2000, 1500, append(jobs, Part{Amount: 1000, Class: "free", Title: "free"}))
	if n := len(many.Segments); n > 10 || many.Mark != 75 {
		t.Errorf("%d segments, mark %v", n, many.Mark)
	}
	last := many.Segments[len(many.Segments)-1]
	if last.X+last.Width > 100.001 || last.Class != "free" {
		t.Errorf("%+v", last)
	}
	if first := many.Segments[0]; first.Title != "1000 TrainJobs" || first.Href != "" {
		t.Errorf("%+v", first)
	}
	over := NewBar("over", 4, 4, []Part{{Amount: 3, Class: "a"}, {Amount: 3, Class: "b"}, {Amount: -1, Class: "c"}})
	if len(over.Segments) != 2 || over.Segments[1].Width != 25 {
		t.Errorf("%+v", over)
	}
	if none := NewBar("none", 0, 0, jobs); len(none.Segments) != 0 {
		t.Errorf("%+v", none)
	}
}

func TestAxis(t *testing.T) {
	at := time.Date(2026, 11, 29, 10, 0, 0, 0, time.UTC)
	for _, hours := range []int{1, 3, 18, 72, 14 * 24, 365 * 24} {
		a := Axis{From: at, To: at.Add(time.Duration(hours) * time.Hour)}
		if n := len(a.Ticks()); n < 2 || n > 12 {
			t.Errorf("%d hours have %d ticks", hours, n)
		}
	}
	a := Axis{From: at, To: at.Add(time.Hour)}
	if got := a.Place(at.Add(30 * time.Minute)); got != 50 {
		t.Errorf("%v", got)
	}
	if a.Place(at.Add(-time.Hour)) != 0 || a.Place(at.Add(9*time.Hour)) != 100 || (Axis{}).Place(at) != 0 {
		t.Error("it is drawn outside")
	}
	if w := a.Width(Span{From: at, To: at}); w != 0.3 {
		t.Errorf("%v", w)
	}
}

func TestCurve(t *testing.T) {
	at := time.Date(2026, 11, 29, 10, 0, 0, 0, time.UTC)
	c := Curve{
		Points: []Point{{at, 5}, {at.Add(time.Minute), 5}},
		Marks:  []Mark{{Time: at.Add(-time.Hour)}, {Time: at}},
	}
	if got := c.Line(); got != "0.00,29.00 100.00,29.00" || len(c.Shown()) != 1 {
		t.Errorf("%s, %d marks", got, len(c.Shown()))
	}
}

func TestLink(t *testing.T) {
	if got := Link("/a", "b", "", "c", "d e&f"); got != "/a?c=d+e%26f" {
		t.Error(got)
	}
	if got := JobPath("a/b", "../c"); got != "/trainjobs/a%2Fb/..%2Fc" {
		t.Error(got)
	}
}

// TestAssets holds that all that a page loads is embedded, and that names have their colours.
func TestAssets(t *testing.T) {
	var frame strings.Builder
	if err := (Frame{}).Write(&frame); err != nil {
		t.Fatal(err)
	}
	loads := regexp.MustCompile(`(?:src|href)="/assets/([^"]+)"`).FindAllStringSubmatch(frame.String(), -1)
	if len(loads) < 4 {
		t.Errorf("%v", loads)
	}
	for _, load := range loads {
		if content, err := fs.ReadFile(Assets(), load[1]); err != nil || len(content) == 0 {
			t.Errorf("%s: %v", load[1], err)
		}
	}
	style, err := fs.ReadFile(Assets(), "style.css")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"a", "b", "vision/resnet"} {
		if !strings.Contains(string(style), "."+Tint(name)+" {") {
			t.Errorf("%s has colour %s", name, Tint(name))
		}
	}
}
