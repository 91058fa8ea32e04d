package apiauth

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/rest"
)

// The client asks for nothing but the two reviews: no discovery.
func TestClientAsksForReviewsOnly(t *testing.T) {
	var asked []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.Method+" "+r.URL.Path)
		kind, version := "TokenReview", "authentication.k8s.io/v1"
		status := map[string]any{"authenticated": true, "user": map[string]any{"username": "prometheus"}}
		if r.URL.Path == "/apis/authorization.k8s.io/v1/subjectaccessreviews" {
			kind, version, status = "SubjectAccessReview", "authorization.k8s.io/v1", map[string]any{"allowed": true}
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		_ = json.NewEncoder(w).Encode(map[string]any{"kind": kind, "apiVersion": version, "status": status})
	}))
	defer server.Close()
	reviews, err := NewClient(&rest.Config{Host: server.URL}, http.DefaultClient)
	if err != nil {
		t.Fatal(err)
	}
	if err := New(reviews, Options{}).Authorize(t.Context(), goodToken, metricsPath); err != nil {
		t.Error(err)
	}
	want := []string{"POST /apis/authentication.k8s.io/v1/tokenreviews", "POST /apis/authorization.k8s.io/v1/subjectaccessreviews"}
	if diff := cmp.Diff(want, asked); diff != "" {
		t.Errorf("requests (-want +got):\n%s", diff)
	}
}

func TestToken(t *testing.T) {
	for in, want := range map[string]string{
		"Bearer abc": "abc", "bearer abc": "abc", "Bearer  abc ": "abc", "": "", "abc": "", "Basic abc": "", "Bearer": "", "Bearerabc": "",
	} {
		r := httptest.NewRequest(http.MethodGet, "/metrics", http.NoBody)
		r.Header.Set("Authorization", in)
		if got := Token(r); got != want {
			t.Errorf("header %q: got %q, want %q", in, got, want)
		}
	}
}

func TestStatusCode(t *testing.T) {
	for want, err := range map[int]error{
		200: nil, 401: fmt.Errorf("review: %w", ErrUnauthenticated), 403: ErrForbidden, 429: ErrBusy, 503: errors.New("connection refused"),
	} {
		if got := StatusCode(err); got != want {
			t.Errorf("%v: got %d, want %d", err, got, want)
		}
	}
}
