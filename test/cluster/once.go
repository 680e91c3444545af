package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// once calls create, which leaves path, unless path exists. Programs that share the cache, such as suites that run side
// by side, wait for the one that creates it, and show that they wait.
func once(label, path string, create func() error) error {
	if found, err := exists(path); found || err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	// The lock is a file that stays: it can't be removed without letting a third program in.
	lock, err := os.Create(path + ".lock")
	if err != nil {
		return err
	}
	defer lock.Close()
	done := showProgress(os.Stderr, label)
	err = await(lock)
	done(err)
	if err != nil {
		return err
	}
	if found, err := exists(path); found || err != nil {
		return err
	}
	return create()
}

func exists(path string) (bool, error) {
	_, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// showProgress prints a line that counts the seconds, on a terminal in place and elsewhere now and then. The returned
// function ends it; builds that take no time leave no line.
func showProgress(w *os.File, label string) func(error) {
	start, stop, stopped := time.Now(), make(chan struct{}), make(chan struct{})
	every, lead, end := 10*time.Second, "", "\n"
	if info, err := w.Stat(); err == nil && info.Mode()&os.ModeCharDevice != 0 {
		every, lead, end = time.Second, "\r", " "
	}
	elapsed := func() time.Duration { return time.Since(start).Round(time.Second) }
	go func() {
		defer close(stopped)
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				fmt.Fprintf(w, "%s%s: building, %s%s", lead, label, elapsed(), end)
			case <-stop:
				return
			}
		}
	}()
	return func(err error) {
		close(stop)
		<-stopped
		if err == nil && elapsed() > time.Second {
			fmt.Fprintf(w, "%s%s: built in %s      \n", lead, label, elapsed())
		}
	}
}
