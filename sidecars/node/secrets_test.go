package node

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"istio-pod-network-controller/api/v1alpha1"
	"istio-pod-network-controller/sidecars/secretvolume"
)

// tokenAPI is an API server that gives out tokens.
type tokenAPI struct {
	asked []authenticationv1.TokenRequestSpec
	of    []string // the ServiceAccounts
	fails error
}

func (a *tokenAPI) client() client.Client {
	return interceptor.NewClient(fake.NewClientBuilder().Build(), interceptor.Funcs{
		SubResourceCreate: func(_ context.Context, _ client.Client, name string, object, request client.Object, _ ...client.SubResourceCreateOption) error {
			r, ok := request.(*authenticationv1.TokenRequest)
			if !ok || name != "token" {
				return errors.New("asked for something else")
			}
			a.asked, a.of = append(a.asked, r.Spec), append(a.of, object.GetNamespace()+"/"+object.GetName())
			r.Status = authenticationv1.TokenRequestStatus{Token: "t0ken", ExpirationTimestamp: metav1.NewTime(time.Unix(1000, 0))}
			return a.fails
		},
	})
}

func podWithAccount() *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "cart-1", UID: "u1"}, Spec: corev1.PodSpec{ServiceAccountName: "cart"},
	}
}

func TestToken_pod_isBoundToIt(t *testing.T) {
	api := &tokenAPI{}
	s := &sidecarSecrets{audiences: []string{"istio-ca"}, client: api.client()}
	token, expires, err := s.Token(t.Context(), podWithAccount(), v1alpha1.ServiceAccountToken{Audience: "istio-ca", ExpirationSeconds: 1200})
	if err != nil || string(token) != "t0ken" || !expires.Equal(time.Unix(1000, 0)) {
		t.Errorf("%q until %s, error %v", token, expires, err)
	}
	lifetime := int64(1200)
	want := authenticationv1.TokenRequestSpec{
		Audiences: []string{"istio-ca"}, ExpirationSeconds: &lifetime,
		BoundObjectRef: &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: "cart-1", UID: "u1"},
	}
	if diff := cmp.Diff(want, api.asked[0]); diff != "" || api.of[0] != "shop/cart" {
		t.Errorf("asked for a token of %s (-want +got):\n%s", api.of[0], diff)
	}
}

func TestToken_otherAudience_isRefused(t *testing.T) {
	for allowed, want := range map[string]string{
		"": "the chart's value proxies.tokenAudiences allows no audience", "istio-ca": "the chart's value proxies.tokenAudiences allows only istio-ca",
	} {
		api := &tokenAPI{}
		s := &sidecarSecrets{client: api.client()}
		if allowed != "" {
			s.audiences = []string{allowed}
		}
		_, _, err := s.Token(t.Context(), podWithAccount(), v1alpha1.ServiceAccountToken{Audience: "https://kubernetes.default.svc"})
		if err == nil || err.Error() != want || len(api.asked) != 0 {
			t.Errorf("error %v, want %q; asked %d times", err, want, len(api.asked))
		}
	}
}

// While the API server does not answer, workers that could restart proxies do not wait for it again and again.
func TestToken_apiServerAway_isAskedEveryTenSeconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := &tokenAPI{fails: errors.New("connection refused")}
		s := &sidecarSecrets{audiences: []string{"a"}, client: api.client()}
		for range 100 {
			if _, _, err := s.Token(t.Context(), podWithAccount(), v1alpha1.ServiceAccountToken{Audience: "a"}); err == nil || !strings.Contains(err.Error(), "refused") {
				t.Fatalf("error %v", err)
			}
			<-time.After(500 * time.Millisecond)
		}
		if len(api.asked) != 5 {
			t.Errorf("asked %d times in 50 s", len(api.asked))
		}
		api.fails = apierrors.NewForbidden(corev1.Resource("serviceaccounts/token"), "cart", errors.New("no"))
		<-time.After(tokenPause)
		for range 3 { // an answer is an answer: it is about one pod
			_, _, _ = s.Token(t.Context(), podWithAccount(), v1alpha1.ServiceAccountToken{Audience: "a"}) // it is refused
		}
		if len(api.asked) != 8 {
			t.Errorf("asked %d times", len(api.asked))
		}
	})
}

// A worker whose own time is over says nothing about the API server: the tokens of other pods do not wait for that.
func TestToken_callerHasNoTimeLeft_othersAsk(t *testing.T) {
	api := &tokenAPI{fails: context.DeadlineExceeded}
	s := &sidecarSecrets{audiences: []string{"a"}, client: api.client()}
	over, cancel := context.WithTimeout(t.Context(), 0)
	defer cancel()
	if _, _, err := s.Token(over, podWithAccount(), v1alpha1.ServiceAccountToken{Audience: "a"}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v", err)
	}
	api.fails = nil
	if _, _, err := s.Token(t.Context(), podWithAccount(), v1alpha1.ServiceAccountToken{Audience: "a"}); err != nil {
		t.Errorf("error %v", err)
	}
}

func TestSecret_missing_saysWhatToDo(t *testing.T) {
	root := t.TempDir()
	mounted(t, root, "mesh", map[string]string{"tls.crt": "c", "tls.key": "hunter2"})
	mounted(t, root, "missing", nil)
	s := &sidecarSecrets{volumes: secretvolume.Volumes{Root: root}}
	for name, want := range map[string]string{
		"missing": "it is not there, or empty: create it in the agent's namespace; nodes have it a minute or two later",
		"unknown": "it is not one of the Secrets that the agent may use: name it in the chart's value proxies.secrets",
		"mesh":    `it has no key "ca.crt"`,
	} {
		if _, err := s.Secret(name, []string{"ca.crt"}); err == nil || err.Error() != want {
			t.Errorf("%s: error %v, want %q", name, err, want)
		}
	}
	if got, err := s.Secret("mesh", []string{"tls.crt"}); err != nil || !cmp.Equal(got, map[string][]byte{"tls.crt": []byte("c")}) {
		t.Errorf("one key: %q, error %v", got, err)
	}
}
