package integration

import (
	"context"
	"reflect"
	"slices"

	"gomodules.xyz/jsonpatch/v2"

	"github.com/signalbox-dev/signalbox/admission"
	"github.com/signalbox-dev/signalbox/overrides/legacy"
	"github.com/signalbox-dev/signalbox/review"
	"github.com/signalbox-dev/signalbox/store"
)

// listTrainer is a Kubeflow Trainer whose list of overrides is not keyed by manager: v2.0 and v2.1. A Record in an
// annotation holds which elements are the integration's.
type listTrainer struct{ kubeflowTrainer }

func (listTrainer) write(
	ctx context.Context, writer *store.Writer, start *admission.Start,
) (way string, err error) {
	return twoWrites, writer.StartInTwo(ctx, start)
}

func (t listTrainer) completeOwn(rq *review.Request) ([]jsonpatch.Operation, error) {
	return t.render(rq)
}

func (listTrainer) keep(rq *review.Request) ([]jsonpatch.Operation, error) {
	return keepAnnotations(rq, []string{store.PinAnnotation}), nil
}

func (listTrainer) unqueued(rq *review.Request) []jsonpatch.Operation {
	return rq.Restore(legacy.RecordAnnotation)
}

func (t listTrainer) queued(rq *review.Request) ([]jsonpatch.Operation, error) { return t.render(rq) }

// render returns the patch that brings a list of overrides in line with the Record: the users' elements as they were
// sent, and after them the integration's. The Record is the integration's alone; whoever sends a list sends it for the
// users. The Record keeps what they have sent, for the day on which the CRD no longer has the list.
func (t listTrainer) render(rq *review.Request) ([]jsonpatch.Operation, error) {
	if !rq.HasSpec() {
		return nil, nil
	}
	before, record := records(rq)
	if record.Field != "" && t.Foreign(record) {
		return annotateRecord(rq, record) // to be migrated
	}
	sent, err := rq.Sent()
	if err != nil {
		return nil, err
	}
	list, _ := sent[t.Field].([]any)
	users := list
	if before.Field == t.Field {
		users = before.Strip(list)
		if dropped, err := t.dropped(rq, before); err != nil {
			return nil, err
		} else if dropped {
			// The CRD has been upgraded, which isn't known yet: the Record is all that is left of the list.
			return annotateRecord(rq, before)
		}
	}
	record.Field, record.Users = t.Field, map[string]any{}
	if len(users) > 0 {
		record.Users[t.Field] = users
	}
	for _, name := range []string{"labels", "annotations"} { // of the JobSet; later CRDs don't have them
		if value := sent[name]; value != nil {
			record.Users[name] = value
		}
	}
	patch := t.listPatch(list, append(slices.Clone(users), record.Own...))
	if record.Empty() {
		return append(patch, rq.Annotate(legacy.RecordAnnotation, nil)...), nil
	}
	annotated, err := annotateRecord(rq, record)
	return append(patch, annotated...), err
}

// records returns the Record before a request, and a copy of it or, if the integration sent the request, the one sent.
// One that can't be read was not written by the integration, and counts for nothing.
func records(rq *review.Request) (before, record *legacy.Record) {
	before, record = &legacy.Record{}, &legacy.Record{}
	if rq.Old != nil {
		if r, err := legacy.RecordOf(rq.Old); err == nil && r != nil {
			before, record = r, &legacy.Record{Field: r.Field, Time: r.Time, Own: r.Own, Users: r.Users}
		}
	}
	if rq.Trusted {
		if r, err := legacy.RecordOf(rq.New); err == nil && r != nil {
			record = r
		}
	}
	return before, record
}

// dropped reports whether the API server no longer stores the list although the Record has elements of it.
func (t listTrainer) dropped(rq *review.Request, before *legacy.Record) (bool, error) {
	stored, err := rq.Stored()
	if err != nil {
		return false, err
	}
	said, _ := before.Users[t.Field].([]any)
	return len(before.Own)+len(said) > 0 && stored[t.Field] == nil, nil
}

func (t listTrainer) listPatch(list, all []any) []jsonpatch.Operation {
	switch {
	case len(all) == 0 && len(list) > 0:
		return []jsonpatch.Operation{jsonpatch.NewOperation("remove", "/spec/"+t.Field, nil)}
	case len(all) > 0 && !reflect.DeepEqual(all, list):
		return []jsonpatch.Operation{jsonpatch.NewOperation("add", "/spec/"+t.Field, all)}
	}
	return nil
}

func annotateRecord(rq *review.Request, record *legacy.Record) ([]jsonpatch.Operation, error) {
	value, err := record.String()
	if err != nil {
		return nil, err
	}
	return rq.Annotate(legacy.RecordAnnotation, &value), nil
}
