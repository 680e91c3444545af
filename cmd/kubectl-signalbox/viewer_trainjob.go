package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/ptr"
	utilslices "sigs.k8s.io/kueue/pkg/util/slices"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/cmd/kubectl-signalbox/explain"
	"github.com/signalbox-dev/signalbox/cmd/kubectl-signalbox/page"
	"github.com/signalbox-dev/signalbox/cmd/kubectl-signalbox/serve"
	"github.com/signalbox-dev/signalbox/cmd/kubectl-signalbox/simulate"
)

// trainJob shows a TrainJob, its logs, or what an action would do; or it acts.
func (v *viewer) trainJob(ctx context.Context, k *known, r serve.Request) (serve.Answer, error) {
	if len(r.Path) < 3 || len(r.Path) > 4 {
		return serve.Answer{}, fmt.Errorf("%w: name a TrainJob by /trainjobs/NAMESPACE/NAME", errNoView)
	}
	s := v.session(r.Path[1])
	job, err := s.trainJob(ctx, r.Path[2])
	if apierrors.IsForbidden(err) && v.narrow && s.namespace != v.base.namespace {
		return serve.Answer{}, fmt.Errorf("namespace %s is shown, because you may not list all; choose %s above: %w",
			v.base.namespace, s.namespace, err)
	}
	if err != nil {
		return serve.Answer{}, err
	}
	return v.shown(ctx, s, job, k, r)
}

// shown shows what is asked for of a TrainJob, or acts.
func (v *viewer) shown(
	ctx context.Context, s *session, job *api.TrainJob, k *known, r serve.Request,
) (serve.Answer, error) {
	what := strings.Join(r.Path[3:], "/")
	act := slices.IndexFunc(verbs, func(verb verb) bool { return verb.name == what })
	switch {
	case act >= 0 && r.Acts:
		return v.act(ctx, s, job, k, verbs[act])
	case act >= 0:
		return v.confirm(ctx, s, job, k, verbs[act])
	case what == "logs" && !r.Acts:
		return v.logs(ctx, s, job, r)
	case what != "" || r.Acts:
		return serve.Answer{}, fmt.Errorf("%w: /%s", errNoView, strings.Join(r.Path, "/"))
	}
	return v.explained(ctx, s, job, k)
}

// explained shows what explain says of a TrainJob, and its pods.
func (v *viewer) explained(ctx context.Context, s *session, job *api.TrainJob, k *known) (serve.Answer, error) {
	s.missing = slices.Clone(k.missing)
	facts, err := s.facts(ctx, job, k.queues)
	if err != nil {
		return serve.Answer{}, err
	}
	e := explain.Explain(facts)
	view := page.TrainJob{
		Namespace: job.Namespace, Name: job.Name, State: e.State, Details: detailsOf(e), Actions: v.actions(ctx, job, e),
		Cause: page.Cause{Code: string(e.Cause.Code), Text: e.Cause.Text, Since: e.Cause.Since, Do: e.Cause.Do},
		Standing: page.Standing{Queue: e.Queue, ClusterQueue: e.ClusterQueue, Priority: e.Priority, Place: e.Place,
			Waiting: e.Waiting, Start: v.planner.plan(k, &v.changes).startOf(facts.Workload)},
	}
	if e.Cause.Reason != view.Code {
		view.Reason = e.Cause.Reason
	}
	view.Pods, err = podsShown(ctx, s, job, facts.Pods)
	if err != nil {
		return serve.Answer{}, err
	}
	for _, in := range s.inClusters(ctx, facts) {
		view.Clusters = append(view.Clusters, elsewhereShown(ctx, s, facts, in))
	}
	if status := job.Status.TrainerStatus; status != nil {
		view.Progress = status.ProgressPercentage
	}
	view.Curves = v.history.curves(job.UID)
	answer := shows("TrainJob "+job.Namespace+"/"+job.Name, s.missing, view)
	answer.Said = v.deeds.told(job.UID)
	return answer, nil
}

// elsewhereShown returns how a TrainJob is in another cluster, with its pods if they are there.
func elsewhereShown(ctx context.Context, s *session, f *explain.Facts, in explain.InCluster) page.Elsewhere {
	shown := page.Elsewhere{Cluster: in.Cluster, Text: in.Unknown}
	if in.Explanation == nil {
		return shown
	}
	cause := in.Explanation.Cause
	shown.State, shown.Code, shown.Text = in.Explanation.State, string(cause.Code), cause.Text
	if ptr.Deref(f.Workload.Status.ClusterName, "") != in.Cluster {
		return shown
	}
	there, err := s.at(in.Cluster)
	var pods []corev1.Pod
	if err == nil {
		there.namespace = f.Job.Namespace
		pods, err = there.pods(ctx, f.Job.Name)
	}
	if err == nil {
		shown.Pods, err = podsShown(ctx, there, f.Job, pods)
	}
	if err != nil {
		shown.Unread = err.Error()
	}
	return shown
}

// detailsOf returns the tables of an explanation.
func detailsOf(e *explain.Explanation) page.Details {
	var d page.Details
	for _, on := range e.Dependencies {
		after := page.After{Name: on.Name, When: on.When.String(), State: on.State, Depth: min(on.Depth, 3)}
		if on.State != "Missing" {
			after.Href = page.JobPath(e.Namespace, on.Name)
		}
		d.After = append(d.After, after)
	}
	d.Flavors = utilslices.Map(e.Flavors, func(f *simulate.Quota) page.Short {
		short := ""
		if f.Short.Sign() > 0 {
			short = f.Short.String()
		}
		return page.Short{Flavor: f.Flavor, Resource: f.Resource, Needed: f.Needed.String(), Free: f.Free.String(),
			Short: short, Nominal: f.Nominal.String(), Most: f.Most.String(), Unsuitable: f.Unsuitable}
	})
	d.Ahead = utilslices.Map(e.Ahead[:min(len(e.Ahead), 10)], func(a *explain.Waiting) page.Waiting {
		return page.Waiting{Namespace: a.Namespace, Name: a.Name, Priority: a.Priority, Since: a.Since}
	})
	d.History = utilslices.Map(e.Timeline, func(m *explain.Moment) page.Moment {
		return page.Moment{Time: m.Time, Source: m.Source, Text: plain(m.Text)}
	})
	return d
}

// podsShown returns a TrainJob's pods by their ranks, with the racks that their nodes are in.
func podsShown(ctx context.Context, s *session, job *api.TrainJob, pods []corev1.Pod) ([]page.Pod, error) {
	var nodes corev1.NodeList
	if _, err := s.list(ctx, &nodes, "nodes"); err != nil {
		return nil, err
	}
	racks := rackOf(nodes.Items)
	sortByRank(pods)
	return utilslices.Map(pods, func(p *corev1.Pod) page.Pod {
		shown := page.Pod{Rank: rankOf(p), Name: p.Name, Phase: string(p.Status.Phase), Node: p.Spec.NodeName,
			Rack: racks[p.Spec.NodeName]}
		for _, c := range p.Status.ContainerStatuses {
			shown.Restarts += c.RestartCount
		}
		if p.DeletionTimestamp != nil {
			shown.Phase = "Terminating"
		}
		if len(startedIn(p)) > 0 {
			shown.Logs = page.Link(page.JobPath(job.Namespace, job.Name)+"/logs", "rank", shown.Rank)
		}
		return shown
	}), nil
}

// actions returns what a user may do with a TrainJob.
func (v *viewer) actions(ctx context.Context, job *api.TrainJob, e *explain.Explanation) []page.Action {
	if !v.acts || errEnded(job) != nil {
		return nil
	}
	may, err := v.may(ctx, authorizationv1.ResourceAttributes{Verb: "patch", Namespace: job.Namespace,
		Group: trainerapi.GroupVersion.Group, Resource: "trainjobs", Name: job.Name})
	if err != nil || !may {
		return nil
	}
	_, stopped := job.Annotations[api.StopAnnotation]
	names := []string{"stop", "restart"}
	if stopped || e.State == string(api.StateSuspended) {
		names = []string{"resume"}
	}
	return utilslices.Map(names, func(name *string) page.Action {
		return page.Action{Verb: *name, Text: strings.ToUpper((*name)[:1]) + (*name)[1:] + " …",
			Href: page.JobPath(job.Namespace, job.Name) + "/" + *name}
	})
}

// mostLines and mostLog bound what is shown of a container's log.
const (
	mostLines = 500
	mostLog   = 1 << 20
)

// logs shows the end of the log of a rank.
func (v *viewer) logs(ctx context.Context, s *session, job *api.TrainJob, r serve.Request) (serve.Answer, error) {
	t := &tail{session: s, name: job.Name, in: map[string]*session{}}
	_, in, err := t.where(ctx, job)
	if err != nil {
		return serve.Answer{}, err
	}
	view := page.Logs{Namespace: job.Namespace, Name: job.Name, Rank: r.Values.Get("rank"), Lines: mostLines}
	var pods []corev1.Pod
	if in != nil {
		if pods, err = ranked(ctx, in, job.Name); err != nil {
			return serve.Answer{}, err
		}
	}
	for i := range pods {
		p := &pods[i]
		rank := rankOf(p)
		view.Ranks = append(view.Ranks, rank)
		if view.Rank == "" {
			view.Rank = rank
		}
		if rank != view.Rank {
			continue
		}
		for _, c := range startedIn(p) {
			text, err := endOfLog(ctx, in, p, c.Name)
			if err != nil {
				return serve.Answer{}, err
			}
			view.Containers = append(view.Containers, page.Log{Container: p.Name + ", " + c.Name, Text: text})
		}
	}
	view.Ranks = slices.Compact(view.Ranks)
	return shows("Log of "+job.Namespace+"/"+job.Name, s.missing, view), nil
}

// endOfLog reads the last lines of a container's log.
func endOfLog(ctx context.Context, in *session, p *corev1.Pod, container string) (string, error) {
	lines, err := in.clients.CoreV1().Pods(p.Namespace).GetLogs(p.Name, &corev1.PodLogOptions{
		Container: container, TailLines: ptr.To(int64(mostLines)), LimitBytes: ptr.To(int64(mostLog)),
	}).Stream(ctx)
	if err != nil {
		return "", fmt.Errorf("reading the log of container %s of pod %s: %w", container, p.Name, err)
	}
	defer lines.Close()
	var text bytes.Buffer
	if _, err := io.Copy(&text, lines); err != nil {
		return "", fmt.Errorf("reading the log of container %s of pod %s: %w", container, p.Name, err)
	}
	return strings.ReplaceAll(text.String(), "\r\n", "\n"), nil
}

// errReadOnly is for a page that changes nothing.
var errReadOnly = errors.New("this page doesn't change TrainJobs")

// act does what a verb of the plugin does, and shows the TrainJob.
func (v *viewer) act(ctx context.Context, s *session, job *api.TrainJob, k *known, does verb) (serve.Answer, error) {
	if !v.acts {
		return serve.Answer{}, fmt.Errorf("%w; use kubectl signalbox %s", errReadOnly, does.name)
	}
	s.client = v.live // what is changed is read again: the watch may be behind
	says := does.name + " goes on until its pods have ended; it is queued again then, as long as this page is served"
	over := v.deeds.begin(ctx, job.UID, says, func(ctx context.Context) (string, error) {
		var said bytes.Buffer
		s.streams.Out = &said
		current, err := s.trainJob(ctx, job.Name)
		if err != nil {
			return "", err
		}
		wl, err := s.workload(ctx, current)
		if err == nil {
			err = does.run(s, ctx, current, wl)
		}
		return said.String(), err
	}, v.changes.Add)
	select {
	case <-over:
	case <-time.After(actWait):
	}
	answer, err := v.explained(ctx, v.session(job.Namespace), job, k)
	answer.Path = page.JobPath(job.Namespace, job.Name)
	return answer, err
}

// confirm says what an action would do.
func (v *viewer) confirm(
	ctx context.Context,
	s *session,
	job *api.TrainJob,
	k *known,
	does verb,
) (serve.Answer, error) {
	if err := errEnded(job); err != nil {
		return serve.Answer{}, err
	}
	view := page.Confirm{Namespace: job.Namespace, Name: job.Name, Verb: does.name}
	var err error
	if view.Consequences, err = consequences(ctx, s, job, k, does.name); err != nil {
		return serve.Answer{}, err
	}
	return shows(strings.ToUpper(does.name[:1])+does.name[1:]+" "+job.Namespace+"/"+job.Name, s.missing, view), nil
}
