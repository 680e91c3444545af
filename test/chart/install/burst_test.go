package install

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/signalbox-dev/signalbox/test/audit"
)

// burst submits 100 TrainJobs. In their midst the certificate is made again, then the CA too, and the leader is killed.
// All finish, and none is started twice.
func (s *stand) burst(one, two *manager) {
	s.Helper()
	const jobs, submitters = 100, 4
	s.runtime("burst", "1s", 1)
	from, err := audit.End(audit.Log(s.dir))
	s.must(err)
	trainJobs := s.trainJobs()
	var submitted, retries atomic.Int32
	leaderless, distrusted := make(chan struct{}), make(chan struct{})
	var all sync.WaitGroup
	for i := range submitters {
		all.Go(func() {
			for n := i; n < jobs; n += submitters {
				if n >= 40 {
					<-leaderless
				}
				if n >= 80 {
					<-distrusted
				}
				retries.Add(int32(s.insist(trainJobs, fmt.Sprintf("burst-%03d", n))))
				submitted.Add(1)
			}
		})
	}
	finished := func(want int) {
		s.Helper()
		s.eventually(fmt.Sprintf("%d of the burst have finished", want), func() (string, bool) {
			list, err := trainJobs.List(s.Context(), metav1.ListOptions{LabelSelector: "burst=yes"})
			s.must(err)
			n := 0
			for _, tj := range list.Items {
				if state, _, _ := unstructured.NestedString(tj.Object, "status", "state"); state == "Complete" {
					n++
				}
			}
			return fmt.Sprintf("%d of %d, %d submitted", n, len(list.Items), submitted.Load()), n >= want
		})
	}
	finished(10)
	certificate := s.renew(one, `{"data":{"tls.crt":null,"tls.key":null}}`, "ca.crt")
	finished(30)
	lost := s.leader(one, two)
	s.kill(lost)
	close(leaderless)
	killed := time.Now()
	survivor := one
	if lost == one {
		survivor = two
	}
	s.leader(survivor)
	took := time.Since(killed)
	finished(60)
	close(distrusted)
	s.renew(survivor, `{"data":null}`, "")
	all.Wait()
	finished(jobs)

	starts := map[string]int{}
	writes, err := audit.Since(audit.Log(s.dir), from, func(r audit.Request) bool {
		return strings.HasSuffix(r.User.Username, ":"+namespace+":signalbox") && r.ObjectRef.Resource == "trainjobs" &&
			r.ObjectRef.Subresource == "" &&
			r.Writes() && r.ResponseStatus.Code < 300 && strings.HasPrefix(r.ObjectRef.Name, "burst-")
	})
	s.must(err)
	twice := 0
	for _, w := range writes {
		if starts[w.ObjectRef.Name]++; starts[w.ObjectRef.Name] == 2 {
			twice++
		}
	}
	s.Logf("burst: %d of %d finished, %d started, %d of them twice; meanwhile the certificate was made anew, then its "+
		"CA; the leader was killed, and another led %s later; %d submissions were sent again",
		jobs, jobs, len(starts), twice, took.Round(time.Second), retries.Load())
	if len(starts) != jobs || twice != 0 {
		s.Errorf("got %d started, %d of them twice; want %d and 0", len(starts), twice, jobs)
	}
	if len(certificate) == 0 {
		s.Error("the certificate was not made anew")
	}
	// Whatever was killed comes back.
	s.run("three")
}

var trainJobResource = schema.GroupVersionResource{Group: "trainer.kubeflow.org", Version: "v1alpha1",
	Resource: "trainjobs"}

func (s *stand) trainJobs() dynamic.ResourceInterface {
	return s.objects.Resource(trainJobResource).Namespace("team")
}

// insist creates a TrainJob, again for as long as no webhook answers or none is trusted, as a user does. It returns how
// often.
func (s *stand) insist(trainJobs dynamic.ResourceInterface, name string) (again int) {
	tj := unqueued(name, "burst")
	tj.SetLabels(map[string]string{"kueue.x-k8s.io/queue-name": "training", "burst": "yes"})
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for s.Context().Err() == nil {
		_, err := trainJobs.Create(s.Context(), tj, metav1.CreateOptions{})
		if err == nil || apierrors.IsAlreadyExists(err) {
			return again
		}
		if !apierrors.IsInternalError(err) {
			s.Errorf("submitting %s: %v", name, err)
			return again
		}
		again++
		<-tick.C
	}
	return again
}

// renew has the certificate made again, and waits until it is served and trusted. kept names what of the Secret must
// stay.
func (s *stand) renew(m *manager, patch, kept string) []byte {
	s.Helper()
	secrets := s.clients.CoreV1().Secrets(namespace)
	before, err := secrets.Get(s.Context(), "signalbox-webhook-cert", metav1.GetOptions{})
	s.must(err)
	if !json.Valid([]byte(patch)) {
		s.Fatalf("not JSON: %s", patch)
	}
	_, err = secrets.Patch(s.Context(), "signalbox-webhook-cert", types.MergePatchType, []byte(patch),
		metav1.PatchOptions{})
	s.must(err)
	var now []byte
	s.eventually("another certificate is served, and trusted", func() (string, bool) {
		secret, err := secrets.Get(s.Context(), "signalbox-webhook-cert", metav1.GetOptions{})
		s.must(err)
		now = secret.Data["tls.crt"]
		if len(now) == 0 || string(now) == string(before.Data["tls.crt"]) {
			return "the Secret has no other", false
		}
		if kept != "" && string(secret.Data[kept]) != string(before.Data[kept]) {
			s.Fatalf("%s has changed too", kept)
		}
		return s.trusted(m, secret)
	})
	return now
}
