package main

import (
	"bytes"
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/signalbox-dev/signalbox/admission/usage"
	"github.com/signalbox-dev/signalbox/cmd/kubectl-signalbox/page"
	"github.com/signalbox-dev/signalbox/cmd/kubectl-signalbox/serve"
)

// periods are how far back the ledger can be shown.
var periods = []string{"1d", "7d", "30d", "90d"}

// ledgerOf returns what was used, as the request asks for it.
func (v *viewer) ledgerOf(ctx context.Context, s *session, r serve.Request) (*sums, usageOptions, error) {
	o := usageOptions{all: true, since: "7d", by: []string{"queue", "team", "day"}}
	if since := r.Values.Get("since"); slices.Contains(periods, since) {
		o.since = since
	}
	if by := r.Values.Get("by"); by != "" {
		o.by = slices.DeleteFunc(strings.Split(by, ","), func(d string) bool { return !slices.Contains(dimensions, d) })
	}
	now := time.Now()
	since, err := lookBack(o.since)
	if err != nil {
		return nil, o, err
	}
	add := func() (*sums, error) {
		to := newSums(o, usage.DayOf(now.Add(-since)))
		return to, (member{"", s}).addUsage(ctx, to, s.namespaceOf(o.all), now)
	}
	all, err := add()
	if err != nil && v.Narrow() { // not of all namespaces, then of the own one
		o.all = false
		all, err = add()
	}
	return all, o, err
}

// teams shows who used what.
func (v *viewer) teams(ctx context.Context, k *known, r serve.Request) (serve.Answer, error) {
	s := v.session("")
	all, o, err := v.ledgerOf(ctx, s, r)
	view := page.Teams{
		Since:  o.since,
		By:     o.by,
		Export: page.Link("/teams.csv", "since", o.since, "by", strings.Join(o.by, ",")),
	}
	for _, since := range periods {
		view.Choices = append(view.Choices, page.Choice{Text: since, Chosen: since == o.since,
			Href: page.Link("/teams", "since", since, "by", r.Values.Get("by"))})
	}
	if err != nil && apierrors.IsInternalError(err) {
		return serve.Answer{}, err
	}
	if err != nil {
		view.Problem = err.Error()
		return shows("Teams", append(s.missing, k.missing...), view), nil
	}
	titles, rows := all.rows(orNone, inHours)
	view.Columns = titles
	most := 0.0
	keys := slices.Sorted(maps.Keys(all.of))
	for _, held := range all.of {
		most = max(most, float64(usage.Total(held)))
	}
	for i, row := range rows {
		held := all.of[keys[i]]
		view.Rows = append(
			view.Rows,
			page.TeamRow{Cells: row, Bar: page.NewBar(strings.Join(row[:len(all.columns)], ", "), most, 0,
				[]page.Part{
					{Amount: float64(held.Useful), Class: "useful", Title: inHours(held.Useful) + " useful"},
					{Amount: float64(held.Lost), Class: "lost", Title: inHours(held.Lost) + " lost"},
					{Amount: float64(held.Idle), Class: "idle", Title: inHours(held.Idle) + " idle"},
					{Amount: float64(held.Unknown), Class: "unknown", Title: inHours(held.Unknown) + " not known"},
				})},
		)
	}
	return shows("Teams", append(s.missing, k.missing...), view), nil
}

// export returns the ledger as kubectl signalbox usage -o csv has it.
func (v *viewer) export(ctx context.Context, _ *known, r serve.Request) (serve.Answer, error) {
	s := v.session("")
	all, _, err := v.ledgerOf(ctx, s, r)
	if err != nil {
		return serve.Answer{}, err
	}
	var text bytes.Buffer
	s.streams.Out = &text
	if err := all.print(s, "csv"); err != nil {
		return serve.Answer{}, err
	}
	return serve.Answer{File: serve.File{Type: "text/csv; charset=utf-8", Data: text.Bytes()}}, nil
}
