package node

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"istio-pod-network-controller/api/v1alpha1"
	"istio-pod-network-controller/sidecars/secretvolume"
)

const (
	// tokenTimeout bounds one request for a token: a worker that restarts proxies waits for it.
	tokenTimeout = 5 * time.Second
	// tokenPause is how long no request is made after an unanswered one.
	tokenPause = 10 * time.Second
)

// sidecarSecrets has the Secrets that the chart mounts, and asks the API server for tokens of pods.
type sidecarSecrets struct {
	volumes secretvolume.Volumes
	// audiences are the allowed audiences of tokens.
	audiences []string
	client    client.Client
	*configMaps

	mu      sync.Mutex
	failed  time.Time
	failure error // of the last request, if the API server did not answer
}

// Secret returns the values of a Secret's keys, all of one version. Without keys it returns all.
func (s *sidecarSecrets) Secret(name string, keys []string) (map[string][]byte, error) {
	return s.volumes.Read(name, keys...)
}

// Token returns a token of the pod's ServiceAccount. It is bound to the pod: the API server refuses it once the pod is gone.
func (s *sidecarSecrets) Token(ctx context.Context, pod *corev1.Pod, want v1alpha1.ServiceAccountToken) (token []byte, expires time.Time, err error) {
	if !slices.Contains(s.audiences, want.Audience) {
		return nil, time.Time{}, fmt.Errorf("the chart's value proxies.tokenAudiences allows %s", allowed(s.audiences))
	}
	if err := s.away(); err != nil {
		return nil, time.Time{}, err
	}
	asked, cancel := context.WithTimeout(ctx, tokenTimeout)
	defer cancel()
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		Audiences: []string{want.Audience}, ExpirationSeconds: &want.ExpirationSeconds,
		BoundObjectRef: &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID},
	}}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Spec.ServiceAccountName}}
	err = s.client.SubResource("token").Create(asked, account, request)
	if ctx.Err() == nil { // otherwise the worker's time is over, whether the API server answers or not
		s.note(err)
	}
	if err != nil {
		return nil, time.Time{}, fmt.Errorf("ask for a token of the ServiceAccount %q: %w", account.Name, err)
	}
	return []byte(request.Status.Token), request.Status.ExpirationTimestamp.Time, nil
}

// away returns why there is no need to ask the API server now, or nil.
func (s *sidecarSecrets) away() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failure != nil && time.Since(s.failed) < tokenPause {
		return s.failure
	}
	return nil
}

func (s *sidecarSecrets) note(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failure, s.failed = nil, time.Now()
	if answered := apierrors.APIStatus(nil); err != nil && !errors.As(err, &answered) {
		s.failure = fmt.Errorf("the API server does not answer: %w", err)
	}
}

func allowed(audiences []string) string {
	if len(audiences) == 0 {
		return "no audience"
	}
	return "only " + strings.Join(audiences, ", ")
}
