package inspectserver

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"k8s.io/client-go/rest"

	"istio-pod-network-controller/diagnostics/inspect"
	"istio-pod-network-controller/internal/apiauth"
)

// allowedTime is how long an answer of the API server about a caller counts.
const allowedTime = 10 * time.Second

// callers knows the rights of callers to pods. An accepted connection costs the API server two questions at most (rate). Connections are
// limited by address, and questions are not: with a smaller limit, one address could use up the questions of all.
type callers struct{ authorizer *apiauth.Authorizer }

// newCallers uses a client with a rate limit of its own, so that callers do not use up the agent's requests.
func newCallers(config *rest.Config) (callers, error) {
	config = rest.CopyConfig(config)
	config.QPS, config.Burst, config.Timeout = 2*rate, 2*burst, timeout
	config.RateLimiter, config.ContentType = nil, "application/json"
	reviews, err := apiauth.NewClient(config, nil)
	if err != nil {
		return callers{}, err
	}
	return callers{apiauth.New(reviews, apiauth.Options{
		AllowedTime: allowedTime, PerSecond: rate, AtOnce: burst, Audience: inspect.Audience,
	})}, nil
}

// right is what a caller wants to do with a pod: a verb with the pod, or with a part of it.
type right struct{ verb, part string }

// kubectl needs the same rights.
func rightToGet() right  { return right{verb: "get"} }
func rightToLog() right  { return right{"get", "log"} }
func rightToExec() right { return right{"create", "exec"} }

// String is the right as in "get pods/log".
func (r right) String() string { return strings.TrimSuffix(r.verb+" pods/"+r.part, "/") }

// check returns nil if the owner of the token has a right to the pod, and else a *inspect.Refusal. It does not look whether there is such a pod.
func (c callers) check(ctx context.Context, token string, to right, namespace, name string) error {
	err := c.authorizer.Authorize(ctx, token, apiauth.Attributes{Verb: to.verb, Resource: "pods", Subresource: to.part, Namespace: namespace, Name: name})
	switch {
	case err == nil:
		return nil
	case errors.Is(err, apiauth.ErrUnauthenticated):
		return &inspect.Refusal{Code: http.StatusUnauthorized, Message: "the API server does not accept this token: it may have expired; log in again"}
	case errors.Is(err, apiauth.ErrForbidden):
		return &inspect.Refusal{Code: http.StatusForbidden, Message: fmt.Sprintf("not allowed: this takes the right to %s of pod %s in namespace %s", to, name, namespace)}
	case errors.Is(err, apiauth.ErrBusy):
		return &inspect.Refusal{Code: http.StatusServiceUnavailable, Message: err.Error()}
	}
	return &inspect.Refusal{Code: http.StatusInternalServerError, Message: "the agent could not ask the API server about the caller: " + err.Error()}
}
