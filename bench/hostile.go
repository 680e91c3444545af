package main

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"time"
)

const (
	// honestJobs are submitted by an honest user, and hostileRequests of one kind sent by hostileClients, both over
	// hostileTime.
	honestJobs, hostileRequests, hostileClients = 100, 1000, 8
	hostileTime                                 = 15 * time.Second
)

// hostileOptions are what is measured with hostile requests, and where.
type hostileOptions struct {
	// cluster is the folder of a control plane of profile node.
	cluster string
	rounds  int
	// only selects kinds, such as "dry runs: owners".
	only, out string
}

// hostileRun is what the starts of honest TrainJobs took while hostile requests were sent.
type hostileRun struct {
	Machine string `json:"machine"`
	// Limit is the memory limit of a manager.
	Limit    int64            `json:"memoryLimitBytes"`
	Measured []hostileMeasure `json:"measured"`
}

// hostileMeasure is one measurement.
type hostileMeasure struct {
	Way   hostileWay `json:"way"`
	Kind  string     `json:"kind"`
	Round int        `json:"round"`
	// Registered is false if the webhooks were unregistered.
	Registered bool `json:"webhooksRegistered"`
	// StartMs are from the request that creates an honest TrainJob to its start, in milliseconds.
	StartMs []float64 `json:"startMs"`
	// Refused are creations of honest TrainJobs that were refused and tried again, by reason.
	Refused map[string]int `json:"refused,omitempty"`
	// Answers are how many hostile requests had each answer, within Seconds.
	Answers map[string]int `json:"answers"`
	Seconds float64        `json:"seconds"`
	Manager managerUse     `json:"manager"`
}

// hostileBench measures starts while hostile requests are sent.
func hostileBench(ctx context.Context, o hostileOptions) (err error) {
	only, err := regexp.Compile(o.only)
	if err != nil {
		return fmt.Errorf("--only: %w", err)
	}
	g, err := newHostileGround(ctx, o.cluster)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, g.register(context.WithoutCancel(ctx), true)) }()
	kinds := slices.DeleteFunc(g.kinds(), func(k hostileKind) bool {
		return k.way != quietly && !only.MatchString(string(k.way)+": "+k.name)
	})
	r := &hostileRun{Machine: machine(), Limit: g.managers.limit}
	if _, err := g.measure(ctx, kinds[0]); err != nil { // so that nothing is done for the first time later
		return err
	}
	err = r.measure(ctx, g, kinds, o.rounds)
	text := r.markdown()
	fmt.Print("\n" + text)
	return errors.Join(err, write(o.out, r, text), r.verdict())
}

func (r *hostileRun) measure(ctx context.Context, g *hostileGround, kinds []hostileKind, rounds int) error {
	for round := range rounds {
		for _, turn := range inRound(kinds, round) {
			if err := g.register(ctx, turn.registered); err != nil {
				return err
			}
			m, err := g.measure(ctx, turn.hostileKind)
			if err != nil {
				return fmt.Errorf("%s, %s: %w", turn.way, turn.name, err)
			}
			m.Round, m.Registered = round, turn.registered
			g.say("%s", m)
			r.Measured = append(r.Measured, *m)
		}
	}
	return nil
}

// hostileTurn is what is measured next.
type hostileTurn struct {
	hostileKind
	registered bool
}

// inRound returns what is measured in a round: each kind with the webhooks and without, in turns first. Large dry runs
// are sent with the webhooks only: without them, the API server computes the managed fields of all their elements.
func inRound(kinds []hostileKind, round int) []hostileTurn {
	var turns []hostileTurn
	for i, k := range kinds {
		if k.way == quietly || k.way == fully {
			turns = append(turns, hostileTurn{k, true})
			continue
		}
		first := (i+round)%2 == 0
		turns = append(turns, hostileTurn{k, first}, hostileTurn{k, !first})
	}
	return turns
}

// String is a line for who waits.
func (m *hostileMeasure) String() string {
	return fmt.Sprintf("%s, %s, webhooks registered %t: p50 %.0f ms, p99 %.0f ms, hostile %v in %.0f s, manager %d MiB, "+
		"%.1f CPU s, %d restarts, refused %v", m.Way, m.Kind, m.Registered, quantile(m.StartMs, 0.5),
		quantile(m.StartMs, 0.99), m.Answers, m.Seconds, m.Manager.Peak>>20, m.Manager.CPU, m.Manager.Restarts, m.Refused)
}
