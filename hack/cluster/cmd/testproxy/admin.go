package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"time"
)

// serveAdmin answers on two ports: one that only the pod reaches, and the readiness port, which redirection leaves alone.
func serveAdmin(ctx context.Context, j *journal, admin, ready uint16, failed chan<- error) error {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz/ready", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) })
	mux.HandleFunc("GET /connections", func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, j.connections()) })
	mux.HandleFunc("GET /counts", func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, j.totals()) })
	for _, at := range []struct {
		host string
		port uint16
	}{{"127.0.0.1", admin}, {"::1", admin}, {"", ready}} {
		l, err := new(net.ListenConfig).Listen(ctx, "tcp", net.JoinHostPort(at.host, strconv.Itoa(int(at.port))))
		if err != nil {
			return fmt.Errorf("listen for questions: %w", err)
		}
		server := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
		context.AfterFunc(ctx, func() { _ = server.Close() })
		go func() { failed <- server.Serve(l) }()
	}
	return nil
}

// writeJSON always answers with status 200.
func writeJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v) // the client has gone
}
