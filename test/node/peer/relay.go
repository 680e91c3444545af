package main

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"time"
)

// relay serves HTTP's CONNECT: it joins each client with the address that the request names, so that what the client
// sends comes from this pod.
func relay(ctx context.Context, listen string) error {
	server := &http.Server{Addr: listen, ReadHeaderTimeout: time.Second, Handler: http.HandlerFunc(join)}
	stop := context.AfterFunc(ctx, func() { server.Close() })
	defer stop()
	if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

func join(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodConnect {
		http.Error(w, "only CONNECT is served", http.StatusMethodNotAllowed)
		return
	}
	to, err := net.Dial("tcp", r.Host)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	defer to.Close()
	from, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	defer from.Close()
	if _, err := io.WriteString(from, "HTTP/1.1 200 Connected\r\n\r\n"); err != nil {
		return
	}
	ended := make(chan struct{}, 2)
	for _, pair := range [][2]net.Conn{{from, to}, {to, from}} {
		go func() {
			_, _ = io.Copy(pair[0], pair[1]) // its end, with or without an error, ends both
			ended <- struct{}{}
		}()
	}
	<-ended
}
