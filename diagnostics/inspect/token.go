package inspect

import (
	"errors"
	"fmt"
	"net/http"
	"strings"

	"k8s.io/client-go/rest"
)

// ErrNoToken means that a kubeconfig identifies its user by something that the agent cannot check.
var ErrNoToken = errors.New("the kubeconfig has no bearer token, only a client certificate or a password, which the agent cannot check: " +
	"give --agent-token \"$(kubectl create token SERVICEACCOUNT --audience " + Audience + ")\" for an account that may get the pod, or --via exec")

// Token returns the bearer token that requests of a kubeconfig carry, wherever it comes from: the file, a token's file, or a plugin.
func Token(config *rest.Config) (string, error) {
	if who := config.Impersonate.UserName; who != "" {
		return "", fmt.Errorf("the kubeconfig acts as %q, which the agent cannot check: leave that out, or use --via exec", who)
	}
	seen := &headerReader{}
	wrapped, err := rest.HTTPWrappersForConfig(config, seen)
	if err != nil {
		return "", fmt.Errorf("read the kubeconfig's credentials: %w", err)
	}
	request, err := http.NewRequest(http.MethodGet, "https://nowhere.invalid/", http.NoBody)
	if err != nil {
		return "", fmt.Errorf("read the kubeconfig's credentials: %w", err)
	}
	response, err := wrapped.RoundTrip(request)
	if err != nil {
		return "", fmt.Errorf("read the kubeconfig's credentials: %w", err)
	}
	_ = response.Body.Close() // it is empty
	token, ok := strings.CutPrefix(seen.authorization, "Bearer ")
	if !ok || token == "" {
		return "", ErrNoToken
	}
	return token, nil
}

// headerReader answers every request itself, and remembers its authorization.
type headerReader struct{ authorization string }

// RoundTrip sends nothing.
func (h *headerReader) RoundTrip(r *http.Request) (*http.Response, error) {
	h.authorization = r.Header.Get("Authorization")
	return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody, Request: r, Header: http.Header{}}, nil
}
