package agent

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// An agent that goes on without the API server is ready, and neither its metrics nor its words may look as if nothing were wrong.
func TestAgent_serverAwayForAnHour_staysReadyAndSaysSo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, registry := hookMetrics(t, Options{NRI: NRI{Mode: NRIOff}, CNI: CNIOff})
		a.ready.add(part{name: "cache", check: a.core.check, note: a.core.note})
		a.core.set(core{})
		if v := valuesOf(t, registry); v["hook_up watch"] != 1 || v["api_server_away_seconds"] != 0 {
			t.Errorf("before: %v", v)
		}
		for range 60 {
			a.core.contact.Note(t.Context(), "pods", errors.New("connection refused"))
			<-time.After(time.Minute)
		}
		if v := valuesOf(t, registry); v["hook_up watch"] != 0 || v["api_server_away_seconds"] != 3600 || v["ready cache"] != 1 {
			t.Errorf("after an hour: %v", v)
		}
		if e := statesOf(t, a)[0]; !e.Up { // all agents would write it when the server is back
			t.Errorf("its own status says %+v", e)
		}
		answer := httptest.NewRecorder()
		healthServer(nil, a.ready).Server.Handler.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/readyz", http.NoBody))
		if words := answer.Body.String(); answer.Code != http.StatusOK || !strings.Contains(words, "cache: the API server does not answer, since 2000-01-01T00:00:00Z: connection refused") {
			t.Errorf("/readyz: %d %s", answer.Code, words)
		}
	})
}
