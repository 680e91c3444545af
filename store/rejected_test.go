package store

import (
	"errors"
	"fmt"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

func TestRejected(t *testing.T) {
	resource := schema.GroupResource{Resource: "trainjobs"}
	for name, c := range map[string]struct {
		err  error
		want bool
	}{
		"nothing":       {nil, false},
		"no answer":     {errDown, false},
		"conflict":      {apierrors.NewConflict(resource, "job", errDown), false},
		"gone":          {apierrors.NewNotFound(resource, "job"), false},
		"too many":      {apierrors.NewTooManyRequests("later", 1), false},
		"unavailable":   {apierrors.NewServiceUnavailable("down"), false},
		"internal":      {apierrors.NewInternalError(errDown), false},
		"forbidden":     {apierrors.NewForbidden(resource, "job", errDown), true},
		"invalid":       {apierrors.NewInvalid(schema.GroupKind{Kind: "TrainJob"}, "job", nil), true},
		"bad request":   {apierrors.NewBadRequest("no"), true},
		"large request": {apierrors.NewRequestEntityTooLargeError("limit is 3145728"), true},
		"large for etcd": {fmt.Errorf("suspending: %w",
			apierrors.NewInternalError(errors.New("etcdserver: request is too large"))), true},
	} {
		if got := Rejected(c.err); got != c.want {
			t.Errorf("%s: got %t, want %t", name, got, c.want)
		}
	}
}
