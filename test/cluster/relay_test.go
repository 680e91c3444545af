package main

import (
	"bufio"
	"net"
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
