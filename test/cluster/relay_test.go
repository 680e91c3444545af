package main

import (
	"bufio"
	"errors"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// TestRelay checks that a relay passes data on, delays what the server sends while it is stalled, and closes
// connections.
func TestRelay(t *testing.T) {
	server, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	go func() {
		for {
			c, err := server.Accept()
			if err != nil {
				return
			}
			go func() { // echoes lines
				lines := bufio.NewReader(c)
				for {
					line, err := lines.ReadString('\n')
					if err != nil {
						return
					}
					if _, err := c.Write([]byte(line)); err != nil {
						return
					}
				}
			}()
		}
	}()
	r, err := newRelay(t.Context(), server.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	c, err := net.Dial("tcp", hostPort(r.port()))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	answers := bufio.NewReader(c)
	echo := func(line string, within time.Duration) (string, error) {
		if _, err := c.Write([]byte(line)); err != nil {
			return "", err
		}
		if err := c.SetReadDeadline(time.Now().Add(within)); err != nil {
			return "", err
		}
		return answers.ReadString('\n')
	}
	if got, err := echo("one\n", 10*time.Second); got != "one\n" || err != nil {
		t.Fatalf("data passes: got %q, %v", got, err)
	}
	for _, p := range r.all() {
		p.stall(true)
	}
	if got, err := echo("two\n", 200*time.Millisecond); err == nil {
		t.Fatalf("a stalled connection delays the response: got %q", got)
	}
	relayActions["flow"](r)
	if got, err := echo("three\n", 10*time.Second); got != "two\n" || err != nil {
		t.Fatalf("nothing is lost: got %q, %v", got, err)
	}
	relayActions["cut"](r)
	if _, err := answers.ReadString('\n'); err != nil { // three
		t.Logf("the response was lost with the connection: %v", err)
	}
	if _, err := answers.ReadString('\n'); err == nil {
		t.Fatal("a connection that was cut is closed")
	}
}

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
