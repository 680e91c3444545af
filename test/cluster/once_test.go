package main

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
)

func TestOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "folder", "program")
	failure := errors.New("interrupted")
	if err := once("program", path, func() error { return failure }); !errors.Is(err, failure) {
		t.Fatalf("got %v", err)
	}
	var made atomic.Int32
	var all, come sync.WaitGroup
	come.Add(8)
	errs := make(chan error, 8)
	for range 8 {
		all.Go(func() {
			come.Done()
			errs <- once("program", path, func() error {
				made.Add(1)
				come.Wait() // all the others are on their way, and find it unmade
				if err := os.WriteFile(path+".part", nil, 0o644); err != nil {
					return err
				}
				return os.Rename(path+".part", path)
			})
		})
	}
	all.Wait()
	close(errs)
	for err := range errs {
		if err != nil {
			t.Error(err)
		}
	}
	if made.Load() != 1 {
		t.Errorf("made %d times; those who come while it is made wait, and a failure before is forgotten", made.Load())
	}
	if _, err := os.Stat(path); err != nil {
		t.Error(err)
	}
}
