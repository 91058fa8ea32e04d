package api

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

func TestNodeReadyNamesWhatItWaitsFor(t *testing.T) {
	after := time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)
	tests := map[string]struct {
		body, wantErr string
		after         time.Time
	}{
		"ready":         {body: `{"status":{"conditions":[{"type":"MemoryPressure","status":"False"},{"type":"Ready","status":"True"}]}}`},
		"ready now":     {body: `{"status":{"conditions":[{"type":"Ready","status":"True","lastHeartbeatTime":"2026-01-02T03:04:05Z"}]}}`, after: after},
		"ready before":  {body: `{"status":{"conditions":[{"type":"Ready","status":"True","lastHeartbeatTime":"2026-01-02T03:04:04Z"}]}}`, after: after, wantErr: "has not reported since"},
		"tainted":       {body: `{"spec":{"taints":[{"key":"node.kubernetes.io/not-ready"}]},"status":{"conditions":[{"type":"Ready","status":"True"}]}}`, wantErr: "not-ready"},
		"not ready":     {body: `{"status":{"conditions":[{"type":"Ready","status":"False","message":"no CNI"}]}}`, wantErr: "no CNI"},
		"no report":     {body: `{}`, wantErr: "not reported"},
		"not an object": {body: `[]`, wantErr: "read the node"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			err := nodeReady([]byte(tt.body), tt.after)
			switch {
			case tt.wantErr == "" && err != nil:
				t.Error(err)
			case tt.wantErr != "" && (err == nil || !strings.Contains(err.Error(), tt.wantErr)):
				t.Errorf("got %v, want it to say %q", err, tt.wantErr)
			}
		})
	}
}

func TestAnswerOtherThanOKIsAnError(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/readyz" {
			http.NotFound(w, r)
		}
	}))
	defer server.Close()
	c := Client{server: server.URL}
	if err := c.Ready(t.Context()); err != nil {
		t.Errorf("200: %v", err)
	}
	if err := c.DefaultServiceAccount(t.Context()); err == nil || !strings.Contains(err.Error(), "404") {
		t.Errorf("404: %v", err)
	}
}
