package main

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"
)

// TestRelay holds that a large request and its answer pass through unchanged, and that nothing else is served.
func TestRelay(t *testing.T) {
	echo := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(w, r.Body) // the client sees what is missing
	}))
	defer echo.Close()
	relay := httptest.NewServer(http.HandlerFunc(join))
	defer relay.Close()
	by, err := url.Parse(relay.URL)
	if err != nil {
		t.Fatal(err)
	}
	client := echo.Client()
	client.Transport.(*http.Transport).Proxy = http.ProxyURL(by)
	body := bytes.Repeat([]byte("0123456789"), 300_000)
	for range 2 {
		response, err := client.Post(echo.URL, "text/plain", bytes.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(response.Body)
		if err := response.Body.Close(); err != nil {
			t.Error(err)
		}
		if err != nil || !bytes.Equal(got, body) {
			t.Errorf("%d bytes of %d come back: %v", len(got), len(body), err)
		}
	}
	response, err := http.Get(relay.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("GET is answered with %s", response.Status)
	}
}
