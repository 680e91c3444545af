package main

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"time"

	"github.com/signalbox-dev/signalbox/test/hostile"
)

// hostileOptions are what is measured with hostile requests, and where.
type hostileOptions struct {
	// cluster is the folder of a control plane of profile node.
	cluster string
	// jobs are submitted by an honest user, and requests sent by so many clients, both over a time.
	jobs, requests, clients int
	over                    time.Duration
	rounds                  int
	// only selects kinds, such as "dry runs: owners".
	only string
	out  string
}

func (o hostileOptions) validate() error {
	if o.jobs < 1 || o.rounds < 1 || o.clients < 1 || o.requests < o.clients || o.over <= 0 {
		return fmt.Errorf("--jobs %d, --rounds %d, --clients %d and --over %s must be positive, and --requests %d at least "+
			"as many as --clients", o.jobs, o.rounds, o.clients, o.over, o.requests)
	}
	return nil
}

// hostileRun is what the starts of honest TrainJobs took while hostile requests were sent.
type hostileRun struct {
	Machine  string  `json:"machine"`
	Jobs     int     `json:"jobs"`
	Requests int     `json:"requests"`
	Clients  int     `json:"clients"`
	Seconds  float64 `json:"seconds"`
	// Limit is the memory limit of a manager.
	Limit    int64            `json:"memoryLimitBytes"`
	Measured []hostileMeasure `json:"measured"`
}

// hostileMeasure is one measurement.
type hostileMeasure struct {
	Kind  string     `json:"kind"`
	Way   hostileWay `json:"way"`
	Round int        `json:"round"`
	// Registered is false if the webhooks were unregistered.
	Registered bool `json:"webhooksRegistered"`
	// StartMs are from the request that creates an honest TrainJob to its start, in milliseconds.
	StartMs []float64 `json:"startMs"`
	// Refused are creations of honest TrainJobs that were refused and tried again, by reason.
	Refused map[string]int  `json:"refused,omitempty"`
	Faults  map[string]int  `json:"faults,omitempty"`
	Hostile hostile.Outcome `json:"hostile"`
	Manager managerUse      `json:"manager"`
}

// quietEach is after how many kinds of raw requests the starts without any are measured again.
const quietEach = 5

// hostileBench measures starts while hostile requests are sent.
func hostileBench(ctx context.Context, o hostileOptions) (err error) {
	only, err := regexp.Compile(o.only)
	if err != nil {
		return fmt.Errorf("--only: %w", err)
	}
	if err := o.validate(); err != nil {
		return err
	}
	g, err := newHostileGround(ctx, o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, g.register(context.WithoutCancel(ctx), true)) }()
	kinds := slices.DeleteFunc(g.kinds(), func(k hostileKind) bool { return !only.MatchString(k.String()) })
	r := &hostileRun{Machine: machine(), Jobs: o.jobs, Requests: o.requests, Clients: o.clients,
		Seconds: o.over.Seconds(), Limit: g.managers.limit}
	if _, err := g.measure(ctx, quietKind); err != nil {
		return err
	}
	for round := range o.rounds {
		for _, m := range inRound(kinds, round) {
			if err := g.register(ctx, m.registered); err != nil {
				return err
			}
			one, err := g.measure(ctx, m.kind)
			if err != nil {
				return fmt.Errorf("%s: %w", m.kind.name, err)
			}
			one.Round, one.Registered = round, m.registered
			g.say("%s", one)
			r.Measured = append(r.Measured, *one)
			if err := write(o.out, r, r.markdown()); err != nil {
				return err
			}
		}
	}
	fmt.Print("\n" + r.markdown())
	return r.verdict()
}

// hostileTurn is what is measured next.
type hostileTurn struct {
	kind       hostileKind
	registered bool
}

// inRound returns what is measured in a round: each kind that passes through the API server with the webhooks and
// without, of which another is first in the next round. Raw reviews are compared with what is measured without hostile
// requests, now and then between them. Large requests are sent in the first round, and with the webhooks: without them,
// the API server doesn't answer most of them within its 34 seconds.
func inRound(kinds []hostileKind, round int) []hostileTurn {
	var turns []hostileTurn
	raw := 0
	for _, k := range kinds {
		switch k.way {
		case dryly, really:
			turns = append(turns, hostileTurn{k, round%2 == 0}, hostileTurn{k, round%2 != 0})
		case fully:
			if round == 0 {
				turns = append(turns, hostileTurn{k, true})
			}
		case rawly:
			if raw%quietEach == 0 {
				turns = append(turns, hostileTurn{quietKind, true})
			}
			raw++
			turns = append(turns, hostileTurn{k, true})
		}
	}
	return turns
}

// String is a line for who waits.
func (m *hostileMeasure) String() string {
	webhooks := "with webhooks"
	if !m.Registered {
		webhooks = "without webhooks"
	}
	return fmt.Sprintf("round %d, %s (%s), %s: p50 %.0f ms, p99 %.0f ms, hostile %v in %.0f s, managers %d MiB "+
		"(resident %d), %.1f CPU s, %d restarts, refused %v, faults %v", m.Round+1, m.Kind, m.Way, webhooks,
		quantile(m.StartMs, 0.5), quantile(m.StartMs, 0.99), m.Hostile.Answers, m.Hostile.Seconds,
		m.Manager.WorkingSet>>20, m.Manager.Resident>>20, m.Manager.CPU, m.Manager.Restarts, m.Refused, m.Faults)
}
