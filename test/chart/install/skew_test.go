package install

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"helm.sh/helm/v3/pkg/action"
	"helm.sh/helm/v3/pkg/chart/loader"

	"github.com/signalbox-dev/signalbox/test/audit"
)

// TestSkew upgrades from the commit before and downgrades to it, with two replicas at a time, while a TrainJob runs:
// managers of each commit work beside the CRDs, webhooks and rights of the other, and beside managers of the other.
// `make test-skew` runs it.
func TestSkew(t *testing.T) {
	before := os.Getenv("SIGNALBOX_BEFORE")
	if before == "" {
		t.Fatal("it needs the tree of the commit before; start it with make test-skew")
	}
	s := newStand(t)
	s.create(ground)
	now := s.chart
	var err error
	s.chart, err = loader.Load(filepath.Join(before, "charts", "signalbox"))
	s.must(err)
	settings := fmt.Sprintf("webhook: {url: %q}", fmt.Sprintf("https://localhost:%d", s.service.port))
	_, err = s.install(settings)
	s.must(err)
	from, err := audit.End(audit.Log(s.dir))
	s.must(err)
	jobs := 0
	trained := func(by string) {
		s.Helper()
		for range 5 {
			jobs++
			s.submit(fmt.Sprintf("job-%d", jobs), "1s", 1)
		}
		for n := jobs - 4; n <= jobs; n++ {
			s.state(fmt.Sprintf("job-%d", n), "Complete")
		}
		s.state("runs", "Running")
		t.Logf("5 TrainJobs trained by %s", by)
	}

	old1, old2 := s.runFrom(before, "before-1"), s.runFrom(before, "before-2")
	s.submit("runs", "forever", 1)
	s.state("runs", "Running")
	trained("the commit before")

	u := action.NewUpgrade(s.helm)
	u.Namespace, u.Wait, u.Timeout = namespace, true, patience
	_, err = u.RunWithContext(t.Context(), "signalbox", now, values(settings))
	s.must(err)
	trained("the commit before, on the CRDs and webhooks of this one")
	new1 := s.run("now-1")
	s.drain(s.follower(old1, old2))
	old := s.leader(old1, old2, new1)
	trained("the commit before as leader, with this one beside it")
	new2 := s.run("now-2")
	s.drain(old)
	leads := s.leader(new1, new2)
	trained("this commit")

	b := action.NewRollback(s.helm)
	b.Version, b.Wait, b.Timeout = 1, true, patience
	s.must(b.Run("signalbox"))
	trained("this commit, on the CRDs and webhooks of the one before")
	old3 := s.runFrom(before, "before-3")
	s.drain(leads)
	rest := new1
	if leads == new1 {
		rest = new2
	}
	s.leader(rest, old3)
	trained("whoever leads, with the other beside it")
	s.drain(rest)
	s.leader(old3)
	trained("the commit before again")

	starts := map[string]int{}
	writes, err := audit.Since(audit.Log(s.dir), from, func(r audit.Request) bool {
		return strings.HasSuffix(r.User.Username, ":"+namespace+":signalbox") && r.ObjectRef.Resource == "trainjobs" &&
			r.ObjectRef.Subresource == "" && r.Writes() && r.ResponseStatus.Code < 300
	})
	s.must(err)
	for _, w := range writes {
		starts[w.ObjectRef.Name]++
	}
	for name, n := range starts {
		if n != 1 {
			t.Errorf("TrainJob %s was written %d times; each is started once", name, n)
		}
	}
	if len(starts) != jobs+1 {
		t.Errorf("%d TrainJobs were started, want %d", len(starts), jobs+1)
	}
	t.Logf("skew: %d TrainJobs, %d started, each once", jobs+1, len(starts))
}

// follower returns the manager of two that doesn't lead.
func (s *stand) follower(one, two *manager) *manager {
	s.Helper()
	if s.leader(one, two) == one {
		return two
	}
	return one
}
