package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/signalbox-dev/signalbox/test/hostile"
)

// attacker is a pod without credentials that sends hostile reviews to the webhooks' port when it is asked to.
type attacker struct {
	reviews map[string][]byte
	client  *http.Client
}

// attack serves GET /kinds, a JSON list of the kinds of reviews, and GET /attack, which sends some and answers with a
// hostile.Outcome. Its parameters are the kind, the requests, the clients, the interval, and the urls.
func attack(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("peer attack", flag.ContinueOnError)
	listen := flags.String("listen", ":8080", "address to be asked at")
	trusted := flags.String("trusted", "", "user whom the webhooks trust, by whom the reviews say they are")
	namespace := flags.String("namespace", "", "namespace of the TrainJobs in the reviews")
	runtime := flags.String("runtime", "", "runtime of them")
	if err := flags.Parse(args); err != nil {
		return err
	}
	a := &attacker{reviews: map[string][]byte{},
		client: &http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{
			MaxIdleConnsPerHost: 1000, TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
		}}}
	for _, size := range []hostile.Size{hostile.Full, hostile.Read} {
		for kind, review := range hostile.Reviews(size.TrainJobs(*namespace, *runtime), *trusted) {
			a.reviews[hostile.Name(kind, review)] = review
		}
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /kinds", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, slices.Sorted(maps.Keys(a.reviews)), nil)
	})
	mux.HandleFunc("GET /attack", func(w http.ResponseWriter, r *http.Request) {
		outcome, err := a.attack(r.Context(), r.URL.Query())
		answer(w, outcome, err)
	})
	server := &http.Server{Addr: *listen, Handler: mux, ReadHeaderTimeout: time.Second}
	stop := context.AfterFunc(ctx, func() { server.Close() })
	defer stop()
	if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

func answer(w http.ResponseWriter, with any, err error) {
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(with) // whoever doesn't read the answer has none
}

func (a *attacker) attack(ctx context.Context, asked url.Values) (hostile.Outcome, error) {
	review, urls := a.reviews[asked.Get("kind")], strings.Fields(asked.Get("urls"))
	requests, err1 := strconv.Atoi(asked.Get("requests"))
	clients, err2 := strconv.Atoi(asked.Get("clients"))
	interval, err3 := time.ParseDuration(asked.Get("interval"))
	if err := errors.Join(err1, err2, err3); err != nil {
		return hostile.Outcome{}, err
	}
	if review == nil || len(urls) == 0 {
		return hostile.Outcome{}, fmt.Errorf("there is no kind %q, or no urls", asked.Get("kind"))
	}
	load := hostile.Load{Requests: requests, Clients: clients, Interval: interval}
	return load.Send(ctx, func(ctx context.Context, n int) string {
		status, err := a.post(ctx, urls[n%len(urls)], review)
		if err != nil {
			return status + failure(err)
		}
		return status
	}), nil
}

// post sends a review and reads its whole answer.
func (a *attacker) post(ctx context.Context, url string, body []byte) (status string, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return "", err
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := a.client.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	_, err = io.Copy(io.Discard, response.Body)
	return strconv.Itoa(response.StatusCode), err
}

// failure is why a request has no answer, in words that don't name a port.
func failure(err error) string {
	if timeout := net.Error(nil); errors.As(err, &timeout) && timeout.Timeout() {
		return "timeout"
	}
	return "connection lost"
}
