package serve

import (
	"context"
	"errors"
	"strconv"
	"testing"
	"time"
)

// TestPool holds that viewers are closed when nobody asks for them, and that streams keep them.
func TestPool(t *testing.T) {
	ended := make(chan string, 10)
	pool := NewPool(t.Context(), 2, 40*time.Millisecond, func(ctx context.Context, u User) (Viewer, error) {
		context.AfterFunc(ctx, func() { ended <- u.Token })
		return &shown{user: u}, nil
	})
	for _, token := range []string{"held", "idle"} {
		if _, err := pool.Of(t.Context(), User{Token: token}); err != nil {
			t.Fatal(err)
		}
	}
	_, release := pool.Hold(User{Token: "held"})
	if v, _ := pool.Hold(User{Token: "unknown"}); v != nil {
		t.Error("a stream has opened a viewer")
	}
	if name := <-ended; name != "idle" {
		t.Errorf("%s was closed", name)
	}
	if _, err := pool.Of(t.Context(), User{Token: "another"}); err != nil {
		t.Fatal(err)
	}
	if v, _ := pool.Hold(User{Token: "another"}); v == nil {
		t.Error("it isn't held")
	}
	if _, err := pool.Of(t.Context(), User{Token: "third"}); !errors.Is(err, errFull) {
		t.Errorf("%v", err)
	}
	if _, err := pool.Of(t.Context(), User{Token: "held", Namespace: "other"}); !errors.Is(err, errFull) {
		t.Errorf("%v", err)
	}
	release()
	if name := <-ended; name != "held" {
		t.Errorf("%s was closed", name)
	}
}

// TestPoolOfOne holds that one user doesn't take the places of others, whatever namespaces are named.
func TestPoolOfOne(t *testing.T) {
	pool := NewPool(t.Context(), mostOfOne+1, time.Hour, func(_ context.Context, u User) (Viewer, error) {
		return &shown{user: u}, nil
	})
	for i := range 3 * mostOfOne {
		one := User{Token: "one", Namespace: strconv.Itoa(i)}
		_, err := pool.Of(t.Context(), one)
		if i >= mostOfOne && !errors.Is(err, errMany) || i < mostOfOne && err != nil {
			t.Errorf("%d: %v", i, err)
		}
		if v, _ := pool.Hold(one); (v == nil) != (err != nil) {
			t.Errorf("%d is held, though %v", i, err)
		}
	}
	if _, err := pool.Of(t.Context(), User{Token: "another"}); err != nil {
		t.Errorf("another: %v", err)
	}
}
