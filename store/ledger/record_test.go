package ledger

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/signalbox-dev/signalbox/admission/usage"
	configapi "github.com/signalbox-dev/signalbox/api/config/v1alpha1"
	usageapi "github.com/signalbox-dev/signalbox/api/usage/v1alpha1"
)

// TestForgets holds which runs a record keeps in mind: those that may be added again, and the last 200 others.
func TestForgets(t *testing.T) {
	l, _, inner, _ := newLedger(t)
	held := func() sets.Set[string] { return sets.New("0", "1") }
	for i := range 300 {
		if err := l.Add(t.Context(), runOf(fmt.Sprint(i), 1), held); err != nil {
			t.Fatal(err)
		}
	}
	var record usageapi.QuotaUsage
	key := client.ObjectKey{Namespace: "team", Name: "queue-2026-11-28"}
	if err := inner.Get(t.Context(), key, &record); err != nil {
		t.Fatal(err)
	}
	if n := len(record.Recent); n != 202 || record.Recent[0].Run != "0" || record.Recent[2].Run != "100" {
		t.Errorf("got %d: %v", n, record.Recent[:3])
	}
	if err := l.Add(t.Context(), runOf("0", 1), held); err != nil {
		t.Fatal(err)
	}
	if runs, _ := idle(t, inner); runs != 300 {
		t.Errorf("got %d runs", runs)
	}
	unknown := make([]usageapi.Recorded, maxRuns+5)
	if got := forget(unknown, func() sets.Set[string] { return nil }); len(got) != maxRuns {
		t.Errorf("got %d", len(got))
	}
}

// TestRows holds that whoever chooses labels and names can't let a record grow, and that nothing is lost of the sums.
func TestRows(t *testing.T) {
	record := &usageapi.QuotaUsage{}
	for i := range 3000 {
		r := runOf(fmt.Sprint(i), 1)
		r.Team, r.User = fmt.Sprint("team-", i), strings.Repeat("ü", 1000)+fmt.Sprint(i)
		r.ClusterQueue = fmt.Sprint("cq-", i)
		r.Amounts[0].Resource = fmt.Sprint("r", i%5)
		add(record, entry{owed{r, none}, r.Spans()[0]})
	}
	sum, users := int64(0), sets.New[string]()
	for _, row := range record.Rows {
		sum += row.Idle
		users.Insert(row.User)
		if len(row.User) > usage.MaxText {
			t.Errorf("a user of %d bytes", len(row.User))
		}
	}
	if len(record.Rows) > maxRows || sum != 3000*1000 || len(users) != ownRows+1 || !users.Has(Other) {
		t.Errorf("got %d rows of %d users, %d", len(record.Rows), len(users), sum)
	}
	for i := range maxRows {
		r := runOf(fmt.Sprint("more", i), 1)
		r.Amounts[0].Resource = fmt.Sprint("more", i)
		add(record, entry{owed{r, none}, r.Spans()[0]})
	}
	if len(record.Rows) > maxRows {
		t.Errorf("got %d rows", len(record.Rows))
	}
}

// TestNames holds that each queue and day has a name of its own that the API server takes.
func TestNames(t *testing.T) {
	long := strings.Repeat("a", 253)
	seen := sets.New[string]()
	for _, queue := range []string{"a", "a.b", long, long[:252] + "b", strings.Repeat("a.", 126) + "a"} {
		for _, day := range []usage.Day{"2026-11-28", "2026-11-29"} {
			name := nameOf(queue, day)
			if seen.Has(name) || len(name) > 253 || strings.Contains(name, ".-") || !strings.HasSuffix(name, string(day)) {
				t.Errorf("%s: got %s", queue, name)
			}
			seen.Insert(name)
		}
	}
}

// TestStart holds that old records are deleted at once and once a day, by the leader, and that what is owed is written.
func TestStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _, inner, clk := newLedger(t)
		ctx, cancel := context.WithCancel(t.Context())
		for name, age := range map[string]int{"old": 91, "kept": 90} {
			day := usage.DayOf(clk.Now().AddDate(0, 0, -age))
			record := &usageapi.QuotaUsage{
				ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: nameOf(name, day)}, Day: string(day),
			}
			if err := inner.Create(ctx, record); err != nil {
				t.Fatal(err)
			}
		}
		ended := make(chan error, 1)
		go func() { ended <- l.Start(ctx) }()
		left := func(when string, want int) {
			t.Helper()
			synctest.Wait()
			var list usageapi.QuotaUsageList
			if err := inner.List(ctx, &list); err != nil || len(list.Items) != want {
				t.Errorf("%s: %d records are left, want %d; error %v", when, len(list.Items), want, err)
			}
		}
		left("at once", 1)
		l.mu.Lock()
		l.owed = append(l.owed, owed{runOf("a", 1), none})
		l.mu.Unlock()
		clk.Step(settleEvery)
		left("what was owed is written", 2)
		clk.Step(pruneEvery)
		left("a day later", 1)
		cancel()
		if err := <-ended; err != nil || !l.NeedLeaderElection() {
			t.Error(err)
		}
	})
}

// TestCheck holds that a cluster without the kind is refused where it is needed.
func TestCheck(t *testing.T) {
	l, _, inner, _ := newLedger(t)
	on := configapi.Usage{Enabled: true}
	missing := interceptor.NewClient(inner.(client.WithWatch), interceptor.Funcs{
		List: func(context.Context, client.WithWatch, client.ObjectList, ...client.ListOption) error {
			return &apimeta.NoKindMatchError{}
		}})
	if err := Check(t.Context(), missing, on); err == nil || !strings.Contains(err.Error(), "usage.enabled to false") {
		t.Errorf("got %v", err)
	}
	if err := errors.Join(Check(t.Context(), missing, configapi.Usage{}), Check(t.Context(), inner, on)); err != nil {
		t.Error(err)
	}
	if l == nil || New(inner, configapi.Usage{}, nil) != nil {
		t.Error("where nobody asks for it, there is none")
	}
}

// TestForgetsOnce holds that for runs that are written together it is looked up once which hold quota: that lists all
// Workloads of the namespace.
func TestForgetsOnce(t *testing.T) {
	l, _, inner, _ := newLedger(t)
	looked := 0
	held := func() sets.Set[string] { looked++; return nil }
	var entries []waiting
	for i := range 500 {
		r := runOf(fmt.Sprint(i), 1)
		entries = append(entries, waiting{entry{owed{r, held}, r.Spans()[0]}, nil})
	}
	key := client.ObjectKey{Namespace: "team", Name: "queue-2026-11-28"}
	if err := l.update(t.Context(), key, entries); err != nil || looked != 1 {
		t.Errorf("got %v; looked up %d times", err, looked)
	}
	if runs, seconds := idle(t, inner); runs != 500 || seconds != 500 {
		t.Errorf("got %d runs of %d s", runs, seconds)
	}
}

// TestOneRecordFails holds that a queue whose record can't be written doesn't hold its quota, although others' can: a
// namespace may have a quota of records, or a record may be too large.
func TestOneRecordFails(t *testing.T) {
	l, f, _, clk := newLedger(t)
	var err error
	for range 8 {
		f.fail = func(verb string) error {
			return map[string]error{"create": errors.New("exceeded quota: count/quotausages")}[verb]
		}
		err = l.Add(t.Context(), runOf("a", 1), none)
		f.fail = nil
		r := runOf("b", 1)
		r.Namespace = "another"
		if err := l.Add(t.Context(), r, none); err != nil {
			t.Fatal(err)
		}
		clk.Step(10 * time.Second)
	}
	if err != nil || len(l.owed) != 1 {
		t.Errorf("after 70 s: got %v, %d are owed", err, len(l.owed))
	}
}

// TestOwesOnce holds that a run whose release is tried again is owed once, up to when it was tried last, and what it
// held before a restart apart from that.
func TestOwesOnce(t *testing.T) {
	l, f, inner, clk := newLedger(t)
	f.fail = func(string) error { return errors.New("no connection") }
	if err := l.Add(t.Context(), runOf("a", 1), none); err == nil {
		t.Fatal("it is tried again")
	}
	clk.Step(2 * patience)
	before := testutil.ToFloat64(unrecorded)
	for i := range 5 {
		if err := l.Add(t.Context(), runOf("a", 1+i), none); err != nil {
			t.Fatal(err)
		}
	}
	again := runOf("a", 9)
	again.Attempt = "2"
	if err := l.Add(t.Context(), again, none); err != nil {
		t.Fatal(err)
	}
	if got := testutil.ToFloat64(unrecorded) - before; len(l.owed) != 2 || got != 2 {
		t.Errorf("%d are owed, %v counted", len(l.owed), got)
	}
	f.fail = nil
	if err := l.Settle(t.Context()); err != nil {
		t.Fatal(err)
	}
	if runs, seconds := idle(t, inner); runs != 1 || seconds != 9 {
		t.Errorf("got %d runs of %d s", runs, seconds)
	}
}

// TestSettlesOthers holds that what can't be written to one queue's records keeps no other from being written, and is
// tried once.
func TestSettlesOthers(t *testing.T) {
	l, f, inner, _ := newLedger(t)
	for i := range 3 {
		l.Later(runOf(fmt.Sprint(i), 1), none)
	}
	r := runOf("other", 1)
	r.Queue = "other"
	l.Later(r, none)
	requests := 0
	f.fail = func(verb string) error {
		if requests++; verb == "create" && requests == 2 { // the first, after its read
			return errors.New("exceeded quota")
		}
		return nil
	}
	if err := l.Settle(t.Context()); err == nil || len(l.owed) != 3 {
		t.Errorf("got %v, %d are owed", err, len(l.owed))
	}
	if runs, _ := idle(t, inner); runs != 1 {
		t.Errorf("%d runs are recorded", runs)
	}
	if err := l.Settle(t.Context()); err != nil || len(l.owed) > 0 {
		t.Errorf("got %v, %d are owed", err, len(l.owed))
	}
}
