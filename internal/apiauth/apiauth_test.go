package apiauth

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	goruntime "runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/client-go/util/flowcontrol"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// fakeReviews is an API server that knows one token, whose owner may do one thing.
type fakeReviews struct {
	mu      sync.Mutex
	allowed bool
	err     error // of every request
	asked   []string
	spec    authorizationv1.SubjectAccessReviewSpec // the newest
	// deaf is an authenticator that knows no audiences.
	deaf, denied bool
}

const goodToken = "good"

// tokenFor returns a token for audiences, which are JSON.
func tokenFor(audiences string) string {
	return "head." + base64.RawURLEncoding.EncodeToString([]byte(`{"aud":`+audiences+`}`)) + ".signature"
}

func (f *fakeReviews) Create(ctx context.Context, review client.Object, _ ...client.CreateOption) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, ok := ctx.Deadline(); !ok {
		return errors.New("the request has no deadline")
	}
	if f.err != nil {
		return f.err
	}
	switch r := review.(type) {
	case *authenticationv1.TokenReview:
		f.asked = append(f.asked, "token")
		audience := strings.Join(r.Spec.Audiences, ",")
		r.Status.Authenticated = r.Spec.Token == goodToken && audience == "" || r.Spec.Token == tokenFor(`["own"]`) && (audience == "own" || f.deaf)
		if !f.deaf {
			r.Status.Audiences = r.Spec.Audiences
		}
		r.Status.User = authenticationv1.UserInfo{
			Username: "prometheus", UID: "1", Groups: []string{"a", "b"}, Extra: map[string]authenticationv1.ExtraValue{"k": {"v"}},
		}
	case *authorizationv1.SubjectAccessReview:
		f.asked = append(f.asked, "access")
		f.spec = r.Spec
		r.Status.Allowed, r.Status.Denied = f.allowed, f.denied
	}
	return nil
}

var metricsPath = Attributes{Verb: "get", Path: "/metrics"}

func TestAuthorize(t *testing.T) {
	down := errors.New("connection refused")
	for name, tc := range map[string]struct {
		token     string
		reviews   *fakeReviews
		want      error
		wantAsked []string
	}{
		"a token whose owner may do it":         {goodToken, &fakeReviews{allowed: true}, nil, []string{"token", "access"}},
		"a token whose owner may not":           {goodToken, &fakeReviews{}, ErrForbidden, []string{"token", "access"}},
		"a token that the cluster has not made": {"bad", &fakeReviews{allowed: true}, ErrUnauthenticated, []string{"token"}},
		"no token":                              {"", &fakeReviews{allowed: true}, ErrUnauthenticated, nil},
		"a token of a megabyte":                 {strings.Repeat("x", 1<<20), &fakeReviews{allowed: true}, ErrUnauthenticated, nil},
		"an API server that does not answer":    {goodToken, &fakeReviews{err: down}, down, nil},
	} {
		t.Run(name, func(t *testing.T) {
			if err := New(tc.reviews, Options{AllowedTime: time.Minute}).Authorize(t.Context(), tc.token, metricsPath); !errors.Is(err, tc.want) {
				t.Errorf("got %v, want %v", err, tc.want)
			}
			if diff := cmp.Diff(tc.wantAsked, tc.reviews.asked); diff != "" {
				t.Errorf("requests (-want +got):\n%s", diff)
			}
		})
	}
}

// What the API server has said about the user is passed on whole: authorizers decide by groups and extra values, too.
func TestReviewNamesTheUser(t *testing.T) {
	user := authorizationv1.SubjectAccessReviewSpec{
		User: "prometheus", UID: "1", Groups: []string{"a", "b"}, Extra: map[string]authorizationv1.ExtraValue{"k": {"v"}},
	}
	path, pod := user, user
	path.NonResourceAttributes = &authorizationv1.NonResourceAttributes{Path: "/metrics", Verb: "get"}
	pod.ResourceAttributes = &authorizationv1.ResourceAttributes{Verb: "get", Resource: "pods", Namespace: "shop", Name: "web"}
	for name, tc := range map[string]struct {
		in   Attributes
		want authorizationv1.SubjectAccessReviewSpec
	}{
		"a path":     {metricsPath, path},
		"a resource": {Attributes{Verb: "get", Resource: "pods", Namespace: "shop", Name: "web"}, pod},
	} {
		t.Run(name, func(t *testing.T) {
			f := &fakeReviews{allowed: true}
			if err := New(f, Options{AllowedTime: time.Minute}).Authorize(t.Context(), goodToken, tc.in); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, f.spec); diff != "" {
				t.Errorf("review (-want +got):\n%s", diff)
			}
		})
	}
}

func TestTokensForAnotherAudience(t *testing.T) {
	own := tokenFor(`["own"]`)
	for name, tc := range map[string]struct {
		token, audience string
		reviews         *fakeReviews
		want            error
	}{
		"for the audience of the options":             {own, "own", &fakeReviews{}, nil},
		"for the API server, with such an option":     {goodToken, "own", &fakeReviews{}, nil},
		"for that audience, without such an option":   {own, "", &fakeReviews{}, ErrUnauthenticated},
		"for another audience":                        {tokenFor(`["other"]`), "own", &fakeReviews{}, ErrUnauthenticated},
		"where the authenticator knows no audiences":  {own, "own", &fakeReviews{deaf: true}, ErrUnauthenticated},
		"where claims are of another shape":           {tokenFor(`"own"`), "own", &fakeReviews{}, ErrUnauthenticated},
		"where one authorizer allows and another not": {goodToken, "own", &fakeReviews{denied: true}, ErrForbidden},
	} {
		t.Run(name, func(t *testing.T) {
			tc.reviews.allowed = true
			if err := New(tc.reviews, Options{Audience: tc.audience}).Authorize(t.Context(), tc.token, metricsPath); !errors.Is(err, tc.want) {
				t.Errorf("got %v, want %v", err, tc.want)
			}
		})
	}
}

func TestDecisionsAreRemembered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeReviews{allowed: true}
		a := New(f, Options{AllowedTime: time.Minute})
		ask := func(token string, to Attributes, want error, wantRequests int) {
			t.Helper()
			f.asked = nil
			if err := a.Authorize(t.Context(), token, to); !errors.Is(err, want) {
				t.Errorf("got %v, want %v", err, want)
			}
			if len(f.asked) != wantRequests {
				t.Errorf("asked %v, want %d requests", f.asked, wantRequests)
			}
		}
		other := Attributes{Verb: "get", Resource: "pods", Namespace: "shop", Name: "web"}
		ask(goodToken, metricsPath, nil, 2)
		ask(goodToken, metricsPath, nil, 0)
		ask(goodToken, other, nil, 2)
		<-time.After(time.Minute - time.Nanosecond)
		f.allowed = false
		ask(goodToken, metricsPath, nil, 0)
		<-time.After(time.Nanosecond)
		ask(goodToken, metricsPath, ErrForbidden, 2)
		ask(goodToken, metricsPath, ErrForbidden, 0)
		f.allowed = true
		<-time.After(deniedTime)
		ask(goodToken, metricsPath, nil, 2)
		f.err = errors.New("down")
		ask("unknown", metricsPath, f.err, 0)
		f.err = nil
		ask("unknown", metricsPath, ErrUnauthenticated, 1)
	})
}

// A flood of tokens reaches the API server at a bounded rate, and does not displace what is allowed.
func TestFloodOfTokens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeReviews{allowed: true}
		a := New(f, Options{AllowedTime: time.Hour})
		if err := a.Authorize(t.Context(), goodToken, metricsPath); err != nil {
			t.Fatal(err)
		}
		f.asked = nil
		busy := 0
		for i := range 100 * mostDecisions {
			if i%mostDecisions == 0 {
				<-time.After(time.Second)
			}
			if err := a.Authorize(t.Context(), fmt.Sprint(i), metricsPath); errors.Is(err, ErrBusy) {
				busy++
			}
		}
		if got, most := len(f.asked), 100*reviewsPerSecond+reviewsAtOnce; got > most || got < most/2 {
			t.Errorf("%d requests in 100 s, want at most %d, and at least half of them", got, most)
		}
		if err := a.Authorize(t.Context(), goodToken, metricsPath); err != nil {
			t.Errorf("the token that was allowed before: %v", err)
		}
		if n := a.denied.entries.Len(); n > mostDecisions {
			t.Errorf("%d refusals are remembered, want at most %d", n, mostDecisions)
		}
	})
}

// Prometheus' token is reviewed again every few minutes. A flood of unknown ones must not blind it then.
func TestAFloodDoesNotKeepOutAKnownToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := New(&fakeReviews{allowed: true}, Options{AllowedTime: time.Minute})
		for round := range 3 {
			if err := a.Authorize(t.Context(), goodToken, metricsPath); err != nil {
				t.Errorf("round %d: %v", round, err)
			}
			<-time.After(time.Hour)
			for i := range mostDecisions {
				_ = a.Authorize(t.Context(), fmt.Sprint(i), metricsPath)
			}
		}
	})
}

// Callers without rights choose the verb, as an HTTP method, and so its length.
func TestRefusalsOfLongRequestsAreSmall(t *testing.T) {
	a := New(&fakeReviews{}, Options{})
	a.limit = flowcontrol.NewFakeAlwaysRateLimiter()
	var before, after goruntime.MemStats
	goruntime.GC()
	goruntime.ReadMemStats(&before)
	for i := range mostDecisions {
		verb := strings.Repeat("x", 1<<18) + strconv.Itoa(i)
		if err := a.Authorize(t.Context(), "bad", Attributes{Verb: verb, Path: "/metrics"}); !errors.Is(err, ErrUnauthenticated) {
			t.Fatal(err)
		}
	}
	goruntime.GC()
	goruntime.ReadMemStats(&after)
	if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > 4<<20 {
		t.Errorf("%d refusals take %d bytes", a.denied.entries.Len(), grown)
	}
	if a.denied.entries.Len() != mostDecisions {
		t.Errorf("%d refusals are remembered", a.denied.entries.Len())
	}
}
