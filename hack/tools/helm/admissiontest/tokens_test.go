package admissiontest

import (
	"context"
	"errors"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// ask is a request for a token of an account in the namespace silent.
type ask struct {
	account   string
	audiences []string
	seconds   int64
	kind, pod string
	uid       types.UID
}

func (a ask) by(ctx context.Context, client kubernetes.Interface) (*authenticationv1.TokenRequest, error) {
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{Audiences: a.audiences, ExpirationSeconds: &a.seconds}}
	if a.kind != "" {
		request.Spec.BoundObjectRef = &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: a.kind, Name: a.pod, UID: a.uid}
	}
	return client.CoreV1().ServiceAccounts("silent").CreateToken(ctx, a.account, request, metav1.CreateOptions{})
}

// narrowsTokens has the agent's account ask for tokens that it must not get, each for one reason alone, and for one that it must.
func (s *server) narrowsTokens(t *testing.T) {
	s.install(t, "proxies: {enabled: true, tokenAudiences: [istio-ca, vault]}")
	s.podOn(t, release, "minter", "n1", release)
	s.podOn(t, "silent", "mine", "n1", "default")
	s.account(t, "silent", "other")
	s.podOn(t, "silent", "theirs", "n2", "default")
	agent := s.client(t, s.token(t, "minter"))
	mine := ask{"default", []string{"istio-ca"}, 600, "Pod", "mine", s.uid(t, "mine")}
	with := func(change func(*ask)) ask { out := mine; change(&out); return out }
	theirs := with(func(a *ask) { a.pod, a.uid = "theirs", s.uid(t, "theirs") })
	// The policy that asks where pods are has nothing against one that there is not: of two that deny, either may speak.
	nobody := func(uid types.UID) ask { return with(func(a *ask) { a.pod, a.uid = "nobody", uid }) }
	untilDenied(t, func(ctx context.Context) error {
		_, audience := with(func(a *ask) { a.audiences = []string{"other"} }).by(ctx, agent)
		_, place := theirs.by(ctx, agent)
		if _, err := mine.by(ctx, agent); err != nil {
			return err
		}
		return errors.Join(audience, place)
	}, "'"+release+"-tokens'", "'"+release+"-tokens-node'")
	const bound, audience = "the agent may create tokens only that are bound to a pod", "the agent may create tokens only for one of the audiences istio-ca, vault"
	const elsewhere = "the pod is not on the agent's node n1"
	for name, c := range map[string]struct {
		ask
		want string
	}{
		"a pod of another node":                                    {theirs, elsewhere},
		"a pod of another node, by its name":                       {with(func(a *ask) { a.pod = "theirs" }), elsewhere},
		"a pod of its node of the same name that was there before": {with(func(a *ask) { a.uid = "before" }), elsewhere},
		"no pod":              {with(func(a *ask) { a.kind, a.pod, a.uid = "", "", "" }), bound},
		"a pod without a UID": {nobody(""), bound},
		"the node":            {with(func(a *ask) { a.kind, a.pod = "Node", "n1" }), bound},
		"a Secret":            {with(func(a *ask) { a.kind, a.pod = "Secret", "mine" }), bound},
		"another audience":    {with(func(a *ask) { a.audiences = []string{"other"} }), audience},
		"an audience more":    {with(func(a *ask) { a.audiences = []string{"istio-ca", "vault"} }), audience},
		"the API server":      {with(func(a *ask) { a.audiences = nil }), audience},
		"another account's":   {with(func(a *ask) { a.account = "other" }), "different serviceaccount name"}, // the API server itself
		"a long life":         {with(func(a *ask) { a.seconds = 86401 }), "for a day at most"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := c.by(t.Context(), agent)
			expectDenied(t, err, c.want)
		})
	}
	t.Run("a token that is bound to no node", func(t *testing.T) {
		_, err := nobody("before").by(t.Context(), s.client(t, s.token(t, "")))
		expectDenied(t, err, "the agent's token is not bound to a node")
	})
	t.Run("others are free, also where there are no pods", func(t *testing.T) {
		s.namespace(t, "deserted", nil, nil)
		_, here := with(func(a *ask) { a.kind, a.pod, a.uid = "", "", "" }).by(t.Context(), s.admin)
		request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{Audiences: []string{"other"}}}
		_, there := s.admin.CoreV1().ServiceAccounts("deserted").CreateToken(t.Context(), "default", request, metav1.CreateOptions{})
		must(t, errors.Join(here, there))
		_, err := agent.CoreV1().ServiceAccounts("deserted").CreateToken(t.Context(), "default", request, metav1.CreateOptions{})
		expectDenied(t, err, bound)
	})
	t.Run("what the agent is for", func(t *testing.T) {
		token, err := mine.by(t.Context(), agent)
		must(t, err)
		review, err := s.admin.AuthenticationV1().TokenReviews().Create(t.Context(), &authenticationv1.TokenReview{
			Spec: authenticationv1.TokenReviewSpec{Token: token.Status.Token, Audiences: []string{"istio-ca"}},
		}, metav1.CreateOptions{})
		if err != nil || !review.Status.Authenticated || review.Status.User.Extra["authentication.kubernetes.io/pod-name"][0] != "mine" {
			t.Errorf("the token is %+v, error %v", review.Status, err)
		}
	})
}

func (s *server) uid(t *testing.T, pod string) types.UID {
	t.Helper()
	found, err := s.admin.CoreV1().Pods("silent").Get(t.Context(), pod, metav1.GetOptions{})
	must(t, err)
	return found.UID
}
