package agent

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/rest"

	"istio-pod-network-controller/internal/outage"
)

// awayServer is the way to an API server that is away. It notes when it is asked.
type awayServer struct {
	mu sync.Mutex
	at []time.Time
}

// RoundTrip fails.
func (a *awayServer) RoundTrip(*http.Request) (*http.Response, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.at = append(a.at, time.Now())
	return nil, syscall.ECONNREFUSED
}

// Agents that start in one outage must not ask in step.
func TestReachAPI_twoAgentsInOneOutage_tryAtDifferentTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
		defer cancel()
		var agents [2]awayServer
		var running sync.WaitGroup
		for i := range agents {
			running.Go(func() {
				if _, err := reachAPI(ctx, &rest.Config{Host: "http://192.0.2.1", Transport: &agents[i]}, Options{}, &outage.Contact{}); !errors.Is(err, context.DeadlineExceeded) {
					t.Error(err)
				}
			})
		}
		running.Wait()
		one, other := agents[0].at, agents[1].at
		if len(one) < 20 || len(other) < 20 {
			t.Fatalf("%d and %d requests", len(one), len(other))
		}
		for _, at := range one {
			if at.After(one[0]) && slices.ContainsFunc(other, at.Equal) {
				t.Errorf("both ask at %s", at)
			}
		}
	})
}

// An agent that has reached the API server must not count the time since its start as an outage, nor say why it failed then.
func TestReachAPI_serverComesBack_isContact(t *testing.T) {
	server, contact := newPodAPI(t), &outage.Contact{}
	reached := make(chan error, 1)
	go func() {
		_, err := reachAPI(t.Context(), &rest.Config{Host: "http://" + server.addr}, Options{NodeName: "node"}, contact)
		reached <- err
	}()
	eventuallyNil(t, func() error {
		if contact.Away() == 0 {
			return errors.New("its absence is not noted")
		}
		return nil
	})
	server.serve(t, "list")
	if err := <-reached; err != nil || contact.Err() != nil || contact.Away() != 0 {
		t.Errorf("reached: %v, contact: %v, away for %s", err, contact.Err(), contact.Away())
	}
}

// An agent that cannot start must say why, whatever the API server answers.
func TestReachAPI_answerIsOfNoUse_isNoted(t *testing.T) {
	for code, want := range map[int]string{
		http.StatusNotFound: "the API server refuses the agent", http.StatusBadRequest: "the API server refuses the agent", http.StatusGatewayTimeout: "the API server does not answer",
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }))
		defer server.Close()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		contact, ended := &outage.Contact{}, make(chan struct{})
		go func() {
			defer close(ended)
			_, _ = reachAPI(ctx, &rest.Config{Host: server.URL}, Options{}, contact)
		}()
		eventuallyNil(t, func() error {
			if err := contact.Err(); err == nil || !strings.HasPrefix(err.Error(), want+", since") {
				return fmt.Errorf("%d: noted %w, want %s", code, err, want)
			}
			return nil
		})
		cancel()
		<-ended
	}
}
