package integration

import (
	"context"
	"fmt"
	"sync"
	"time"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"

	api "github.com/signalbox-dev/signalbox/api/trainer/v1alpha1"
	"github.com/signalbox-dev/signalbox/overrides"
)

// TrainJobCRD is the CRD that shows which Trainer is installed.
const TrainJobCRD = "trainjobs.trainer.kubeflow.org"

// DialectOf returns how the Trainer that a CRD is of takes overrides.
func DialectOf(crd *apiextensionsv1.CustomResourceDefinition) (overrides.Dialect, error) {
	spec := specOf(crd, trainerapi.GroupVersion.Version)
	if hasField(spec, gracePeriod) {
		return overrides.Kubeflow23, nil
	}
	for _, d := range []overrides.Dialect{overrides.Kubeflow22, overrides.Kubeflow21, overrides.Kubeflow20} {
		if _, found := spec[d.Field()]; found {
			return d, nil
		}
	}
	return nil, fmt.Errorf("CRD %s has none of spec.%s, spec.%s and spec.%s: it is of no Kubeflow Trainer from v2.0 to "+
		"v2.3; install one of these",
		crd.Name, overrides.RuntimePatches, overrides.PodTemplateOverrides, overrides.PodSpecOverrides)
}

// gracePeriod is what runtimePatches can set of a pod since Kubeflow Trainer v2.3.
var gracePeriod = []string{
	overrides.RuntimePatches, "trainingRuntimeSpec", "template", "spec", "replicatedJobs", "template", "spec", "template",
	"spec", "terminationGracePeriodSeconds",
}

// refusalHolds is for how long a refused atomic start is remembered: Kubeflow Trainer v2.2.0 refuses all of them,
// v2.2.1, which has the same CRD, none, and an upgrade of the one to the other is not seen but by trying.
const refusalHolds = 10 * time.Minute

// Installed knows the Trainer of the cluster, and follows it when its CRD changes.
type Installed struct {
	clock clock.PassiveClock

	mu      sync.Mutex
	dialect overrides.Dialect
	refused time.Time
	changed func() // is told of another Trainer; nil before anybody asks
}

// NewInstalled returns the Installed of a cluster whose Trainer is known to be of the dialect.
func NewInstalled(d overrides.Dialect, clk clock.PassiveClock) *Installed {
	return &Installed{clock: clk, dialect: d}
}

// Dialect of the Trainer as it is now.
func (i *Installed) Dialect() overrides.Dialect {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.dialect
}

// Trainer returns the Trainer as it is now.
func (i *Installed) Trainer() Trainer { return trainerOf(i.Dialect(), i) }

// refuses reports whether the Trainer has refused an atomic start a short while ago.
func (i *Installed) refuses() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return !i.refused.IsZero() && i.clock.Since(i.refused) < refusalHolds
}

func (i *Installed) refusedAtomic() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.refused = i.clock.Now()
}

// observe takes a CRD as it is now, and reports whether it is another Trainer's than before.
func (i *Installed) observe(crd *apiextensionsv1.CustomResourceDefinition) (bool, error) {
	d, err := DialectOf(crd)
	if err != nil {
		return false, err
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.dialect == d {
		return false, nil
	}
	i.dialect, i.refused = d, time.Time{}
	return true, nil
}

// Watch keeps the dialect up to date with the CRD, on every replica: webhooks are served by all.
func (i *Installed) Watch(ctx context.Context, informers cache.Informers) error {
	informer, err := informers.GetInformer(ctx, &apiextensionsv1.CustomResourceDefinition{})
	if err != nil {
		return fmt.Errorf("watching CRD %s: %w", TrainJobCRD, err)
	}
	log := ctrl.LoggerFrom(ctx).WithValues("crd", TrainJobCRD)
	look := func(object any) {
		crd, ok := object.(*apiextensionsv1.CustomResourceDefinition)
		if !ok || crd.Name != TrainJobCRD {
			return
		}
		switch changed, err := i.observe(crd); {
		case err != nil:
			log.Error(err, "The Trainer that is installed now is not known; TrainJobs are started as with the one before")
		case changed:
			log.Info("Another Trainer is installed", "trainer", i.Dialect().Name())
			i.mu.Lock()
			tell := i.changed
			i.mu.Unlock()
			if tell != nil {
				tell()
			}
		}
	}
	_, err = informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc: look, UpdateFunc: func(_, now any) { look(now) },
	})
	return err
}

// again sends every TrainJob on when the Trainer is another: what it does with an entry is another thing then.
func (i *Installed) again(ctx context.Context, c client.Reader) <-chan event.GenericEvent {
	events := make(chan event.GenericEvent)
	told := make(chan struct{}, 1)
	i.mu.Lock()
	i.changed = func() {
		select {
		case told <- struct{}{}:
		default: // a look at all TrainJobs is about to come
		}
	}
	i.mu.Unlock()
	go func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-told:
			}
			var jobs api.TrainJobList
			if err := c.List(ctx, &jobs); err != nil {
				ctrl.LoggerFrom(ctx).Error(err, "Listing the TrainJobs of a cluster with another Trainer, trying again")
				select {
				case <-time.After(time.Second):
				case <-ctx.Done():
				}
				i.changed()
				continue
			}
			for n := range jobs.Items {
				select {
				case events <- event.GenericEvent{Object: &jobs.Items[n]}:
				case <-ctx.Done():
					return
				}
			}
		}
	}()
	return events
}
