package apiauth

import (
	"errors"
	"fmt"
	"net/http"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// NewClient returns what New needs. It has a rate limit of its own, so reviews never hold up the agent's other requests. It makes no
// request yet. A nil httpClient means one of its own.
func NewClient(config *rest.Config, httpClient *http.Client) (Reviews, error) {
	scheme := runtime.NewScheme()
	if err := errors.Join(authenticationv1.AddToScheme(scheme), authorizationv1.AddToScheme(scheme)); err != nil {
		return nil, err
	}
	// Both groups are part of every API server: there is no need to ask for them.
	mapper := meta.NewDefaultRESTMapper(nil)
	mapper.Add(authenticationv1.SchemeGroupVersion.WithKind("TokenReview"), meta.RESTScopeRoot)
	mapper.Add(authorizationv1.SchemeGroupVersion.WithKind("SubjectAccessReview"), meta.RESTScopeRoot)
	c, err := client.New(config, client.Options{HTTPClient: httpClient, Scheme: scheme, Mapper: mapper})
	if err != nil {
		return nil, fmt.Errorf("make client for reviews: %w", err)
	}
	return c, nil
}

// Token returns the bearer token of a request, or "".
func Token(r *http.Request) string {
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return ""
	}
	return strings.TrimSpace(token)
}

// StatusCode returns the HTTP status for an error of Authorize.
func StatusCode(err error) int {
	switch {
	case err == nil:
		return http.StatusOK
	case errors.Is(err, ErrUnauthenticated):
		return http.StatusUnauthorized
	case errors.Is(err, ErrForbidden):
		return http.StatusForbidden
	case errors.Is(err, ErrBusy):
		return http.StatusTooManyRequests
	}
	return http.StatusServiceUnavailable
}
