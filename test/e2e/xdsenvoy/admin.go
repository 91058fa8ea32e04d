package xdsenvoy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"regexp"
	"time"

	"google.golang.org/protobuf/encoding/protojson"

	"istio-pod-network-controller/test/e2e/xdsenvoy/upstream"
)

// serveAdmin serves the administration, of which pilot-agent reads readiness and open connections, and by which it has the proxy drain. Its port is
// not shared: a second proxy in the namespace needs another.
func (s *server) serveAdmin(ctx context.Context) error {
	network, address := upstream.Address(s.bootstrap.GetAdmin().GetAddress())
	if network == "" {
		return errors.New("the administration has no address")
	}
	l, err := new(net.ListenConfig).Listen(ctx, network, address)
	if err != nil {
		return fmt.Errorf("listen for the administration: %w", err)
	}
	server := &http.Server{Handler: s.admin(), ReadHeaderTimeout: time.Minute}
	context.AfterFunc(ctx, func() { _ = server.Close() })
	go server.Serve(l) //nolint:errcheck // ends with the process
	return nil
}

func (s *server) admin() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /ready", s.serveReady)
	mux.HandleFunc("GET /stats", s.serveStats)
	mux.HandleFunc("GET /stats/prometheus", func(w http.ResponseWriter, _ *http.Request) {
		s.stats.Gauge("server.state").Store(s.state())
		w.Header().Set("Content-Type", "text/plain; version=0.0.4")
		s.stats.WritePrometheus(w)
	})
	mux.HandleFunc("GET /server_info", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, map[string]any{"version": "stand-in", "state": stateNames[s.state()], "uptime_current_epoch": fmt.Sprintf("%.0fs", time.Since(s.began).Seconds())})
	})
	mux.HandleFunc("GET /config_dump", s.serveConfiguration)
	mux.HandleFunc("POST /drain_listeners", s.drain)
	mux.HandleFunc("POST /quitquitquit", func(w http.ResponseWriter, _ *http.Request) {
		ok(w)
		s.log.Info("told to quit")
		time.AfterFunc(100*time.Millisecond, s.quit) // the answer is to arrive
	})
	for path, failed := range map[string]bool{"fail": true, "ok": false} {
		mux.HandleFunc("POST /healthcheck/"+path, func(w http.ResponseWriter, _ *http.Request) {
			s.failed.Store(failed)
			s.listeners.Fail(failed)
			ok(w)
		})
	}
	return mux
}

var stateNames = map[int64]string{stateLive: "LIVE", stateDraining: "DRAINING", stateInitializing: "INITIALIZING"}

func ok(w http.ResponseWriter) { fmt.Fprintln(w, "OK") }

func (s *server) serveReady(w http.ResponseWriter, _ *http.Request) {
	if state := s.state(); state != stateLive {
		w.WriteHeader(http.StatusServiceUnavailable)
		fmt.Fprintln(w, stateNames[state])
		return
	}
	fmt.Fprintln(w, "LIVE")
}

// serveStats lists the stats that were used, which are all.
func (s *server) serveStats(w http.ResponseWriter, r *http.Request) {
	s.stats.Gauge("server.state").Store(s.state())
	var filter *regexp.Regexp
	if text := r.URL.Query().Get("filter"); text != "" {
		var err error
		if filter, err = regexp.Compile(text); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
	}
	s.stats.Write(w, filter)
}

// drain is Envoy's: graceful asks clients to go until the drain time is over, and closes the listeners then, unless skip_exit is given.
func (s *server) drain(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	if query.Has("skip_exit") && !query.Has("graceful") {
		http.Error(w, "skip_exit requires graceful", http.StatusBadRequest)
		return
	}
	s.log.Info("draining", "how", r.URL.RawQuery)
	s.listeners.Drain(query.Has("inboundonly"), query.Has("graceful"), query.Has("skip_exit"))
	ok(w)
}

func (s *server) serveConfiguration(w http.ResponseWriter, _ *http.Request) {
	dump := map[string][]json.RawMessage{}
	for kind, messages := range s.configuration() {
		for _, m := range messages {
			text, err := protojson.Marshal(m)
			if err != nil { // a part whose type is not linked in
				text, err = json.Marshal(fmt.Sprint(m))
			}
			if err == nil {
				dump[kind] = append(dump[kind], text)
			}
		}
	}
	writeJSON(w, dump)
}

func writeJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v) // the client may have gone
}
