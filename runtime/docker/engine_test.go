package docker

import (
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/moby/moby/api/types/container"
)

// fakeEngine answers as an Engine of one API version does: other versions are refused, lists are filtered, an unknown
// container is a 404.
type fakeEngine struct {
	apiVersion    string
	list          []container.Summary
	containers    map[string]json.RawMessage
	ignoresFilter bool
	hangs         bool
}

func (e *fakeEngine) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if e.hangs {
		<-r.Context().Done()
		return
	}
	routes := http.NewServeMux()
	routes.HandleFunc("/_ping", func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Api-Version", e.apiVersion) })
	prefix := "GET /v" + e.apiVersion
	routes.HandleFunc(prefix+"/version", func(w http.ResponseWriter, _ *http.Request) {
		reply(w, http.StatusOK, map[string]string{"Version": "20.10.24+dfsg1", "ApiVersion": e.apiVersion})
	})
	routes.HandleFunc(prefix+"/containers/json", func(w http.ResponseWriter, r *http.Request) {
		reply(w, http.StatusOK, slices.DeleteFunc(slices.Clone(e.list), func(c container.Summary) bool {
			return !e.ignoresFilter && !selects(r.URL.Query().Get("filters"), c)
		}))
	})
	routes.HandleFunc(prefix+"/containers/{id}/json", func(w http.ResponseWriter, r *http.Request) {
		answer, ok := e.containers[r.PathValue("id")]
		if !ok {
			reply(w, http.StatusNotFound, map[string]string{"message": "No such container: " + r.PathValue("id")})
			return
		}
		reply(w, http.StatusOK, answer)
	})
	routes.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		reply(w, http.StatusBadRequest, map[string]string{"message": "unexpected request for " + r.URL.Path})
	})
	routes.ServeHTTP(w, r)
}

func reply(w http.ResponseWriter, status int, answer any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	if raw, ok := answer.(json.RawMessage); ok {
		_, _ = w.Write(raw) // as it is: an answer may be broken on purpose
		return
	}
	_ = json.NewEncoder(w).Encode(answer)
}

// selects reads filters as the Engine does: all labels must be there, one status must be.
func selects(filters string, c container.Summary) bool {
	var f map[string]map[string]bool
	if err := json.Unmarshal([]byte(filters), &f); err != nil {
		return false
	}
	for label := range f["label"] {
		if key, value, _ := strings.Cut(label, "="); c.Labels[key] != value {
			return false
		}
	}
	return len(f["status"]) == 0 || f["status"][string(c.State)]
}

// serve starts the Engine on a socket of the test and returns the socket's path.
func serve(t *testing.T, e *fakeEngine) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "docker.sock")
	serveAt(t, path, e)
	return path
}

func serveAt(t *testing.T, path string, e http.Handler) {
	t.Helper()
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(e)
	if err := server.Listener.Close(); err != nil {
		t.Fatal(err)
	}
	server.Listener = listener
	server.Start()
	t.Cleanup(server.Close)
}

// newFinder makes a Finder that is closed with the test.
func newFinder(t *testing.T, endpoint string) *Finder {
	t.Helper()
	f, err := New(endpoint)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
	return f
}

// recorded is an Engine that gives the recorded answers.
func recorded(t *testing.T) *fakeEngine {
	t.Helper()
	e := &fakeEngine{apiVersion: "1.41", containers: map[string]json.RawMessage{}}
	readAnswer(t, "list-sandboxes.json", &e.list)
	for _, file := range []string{"inspect-sandbox.json", "inspect-container.json"} {
		var answers []json.RawMessage
		readAnswer(t, file, &answers)
		e.containers[inspected(t, file).ID] = answers[0]
	}
	return e
}

func inspected(t *testing.T, file string) container.InspectResponse {
	t.Helper()
	var answers []container.InspectResponse
	readAnswer(t, file, &answers)
	return answers[0]
}

func readAnswer(t *testing.T, file string, into any) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", file))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, into); err != nil {
		t.Fatalf("decode %s: %v", file, err)
	}
}
