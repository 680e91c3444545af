// Command registry serves images and charts over HTTP to the rehearsal of a release and to the first hour of a user
// (test/release), and keeps them in memory as long as it runs.
package main

import (
	"flag"
	"log"
	"net/http"
	"os"
	"time"

	"github.com/google/go-containerregistry/pkg/registry"
)

func main() {
	listen := flag.String("listen", "127.0.0.1:5000", "address to listen on")
	flag.Parse()
	server := &http.Server{
		Addr: *listen, ReadHeaderTimeout: 10 * time.Second,
		Handler: registry.New(registry.WithReferrersSupport(true), registry.Logger(log.New(os.Stderr, "", 0))),
	}
	if err := server.ListenAndServe(); err != nil {
		log.Fatalln("registry:", err)
	}
}
