package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"
)

// remembered is how many connections /connections lists.
const remembered = 1000

// connection is one line of the log.
type connection struct {
	Time        time.Time `json:"time"`
	Direction   direction `json:"direction"`
	Peer        string    `json:"peer"`
	OriginalDst string    `json:"originalDst,omitempty"`
	Error       string    `json:"error,omitempty"`
}

// count is how many connections of one direction reached their destination.
type count struct {
	OK     int `json:"ok"`
	Failed int `json:"failed"`
}

// journal writes a line a connection, remembers the last ones and counts all. The line is for people and `kubectl logs`, the rest for
// tests, which ask over HTTP because they may not read the log of a container that has gone.
type journal struct {
	mu     sync.Mutex
	lines  *json.Encoder
	last   []connection
	counts map[direction]count
}

// newJournal starts with both directions at zero, so that readers find them before the first connection.
func newJournal(w io.Writer) *journal {
	return &journal{
		lines: json.NewEncoder(w), last: []connection{},
		counts: map[direction]count{outboundDirection: {}, inboundDirection: {}},
	}
}

// add never fails: what cannot be written is still remembered and counted.
func (j *journal) add(c connection) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if len(j.last) == remembered {
		j.last = append(j.last[:0], j.last[1:]...)
	}
	j.last = append(j.last, c)
	n := j.counts[c.Direction]
	if c.Error == "" {
		n.OK++
	} else {
		n.Failed++
	}
	j.counts[c.Direction] = n
	_ = j.lines.Encode(c) // a full or closed log must not stop traffic
}

// connections are the last ones, oldest first.
func (j *journal) connections() []connection {
	j.mu.Lock()
	defer j.mu.Unlock()
	return append([]connection{}, j.last...)
}

// totals are a copy, because the encoder reads them while connections go on.
func (j *journal) totals() map[direction]count {
	j.mu.Lock()
	defer j.mu.Unlock()
	return maps.Clone(j.counts)
}

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
