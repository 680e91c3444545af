package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/signalbox-dev/signalbox/cmd/kubectl-signalbox/page"
	"github.com/signalbox-dev/signalbox/cmd/kubectl-signalbox/serve"
)

var _ serve.Viewer = &viewer{}

// Answer implements serve.Viewer.
func (v *viewer) Answer(ctx context.Context, r serve.Request) serve.Answer {
	answer, err := v.answer(ctx, r)
	if err != nil {
		answer = serve.Answer{Status: statusOf(err)}
		answer.Title, answer.View = "Signalbox", page.Problem{Text: err.Error()}
	}
	answer.Cluster, answer.Lost = v.cluster, v.health.lost()
	slices.Sort(answer.Missing)
	answer.Missing = slices.Compact(answer.Missing)
	return answer
}

func statusOf(err error) int {
	switch {
	case errors.Is(err, errNoView) || apierrors.IsNotFound(err):
		return http.StatusNotFound
	case apierrors.IsForbidden(err) || errors.Is(err, errReadOnly):
		return http.StatusForbidden
	case errors.Is(err, errOver):
		return http.StatusConflict
	}
	return http.StatusInternalServerError
}

// answer returns the view of a path.
func (v *viewer) answer(ctx context.Context, r serve.Request) (serve.Answer, error) {
	k, err := v.read(ctx)
	if err != nil {
		return serve.Answer{}, err
	}
	first := ""
	if len(r.Path) > 0 {
		first = r.Path[0]
	}
	view, of := map[string]func(context.Context, *known, serve.Request) (serve.Answer, error){
		"": v.now, "timeline": v.timeline, "whatif": v.whatIf, "nodes": v.nodes, "teams": v.teams, "teams.csv": v.export,
	}[first]
	switch {
	case first == "trainjobs" && len(r.Path) > 1:
		return v.trainJob(ctx, k, r)
	case first == "trainjobs":
		return v.trainJobs(k, r), nil
	case !of || len(r.Path) > 1 || r.Acts && first != "whatif":
		return serve.Answer{}, fmt.Errorf("%w: /%s", errNoView, strings.Join(r.Path, "/"))
	}
	return view(ctx, k, r)
}
