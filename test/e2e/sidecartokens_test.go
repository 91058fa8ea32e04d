package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// tokenAudience is the one in the chart's value proxies.tokenAudiences.
const tokenAudience = "e2e-mesh"

// The token that lies in a proxy is its pod's: it names the pod, is of no use for anything but its audience, and ends with the pod.
//
//e2e:rounds nri
func TestSidecarTokenIsBoundToItsPod(t *testing.T) {
	t.Parallel()
	m := newManaged(t, withSecrets(tokenSource(tokenAudience)))
	pod := m.startManaged(t, plainPod("holder"))
	secrets := m.secretsOf(t, pod, 0)
	wantPrivate(t, secrets)
	text, err := os.ReadFile(filepath.Join(secrets, "istio/..data/token"))
	must(t, err)
	token := string(text)

	status := m.review(t.Context(), t, token, tokenAudience)
	want := map[string]string{"pod-name": "holder", "pod-uid": string(pod.UID), "node-name": m.node.NodeName}
	for key, value := range want {
		if got := status.User.Extra["authentication.kubernetes.io/"+key]; len(got) != 1 || got[0] != value {
			t.Errorf("the token's %s is %q, want %q", key, got, value)
		}
	}
	if who := "system:serviceaccount:" + m.name + ":default"; !status.Authenticated || status.User.Username != who {
		t.Errorf("the token is %s's, want %s: %s", status.User.Username, who, status.Error)
	}
	if status := m.review(t.Context(), t, token, "another"); status.Authenticated {
		t.Error("the token is good for another audience")
	}
	if _, err := m.as(t, token).CoreV1().Pods(m.name).List(t.Context(), metav1.ListOptions{}); !apierrors.IsUnauthorized(err) {
		t.Errorf("the API server takes the token as its own audience's: %v", err)
	}
	now := int64(0)
	must(t, m.pods().Delete(t.Context(), pod.Name, metav1.DeleteOptions{GracePeriodSeconds: &now}))
	eventually(t, "the end of the token", func(ctx context.Context) error {
		if m.review(ctx, t, token, tokenAudience).Authenticated {
			return errors.New("it is still good")
		}
		return nil
	})
	m.wantNothingLeft(t, []types.UID{pod.UID})
	if strings.Contains(m.agentLog(t), token) {
		t.Error("the agent's log has the token")
	}
}

func (c *cluster) review(ctx context.Context, t *testing.T, token, audience string) authenticationv1.TokenReviewStatus {
	t.Helper()
	review := &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token, Audiences: []string{audience}}}
	review, err := c.api.AuthenticationV1().TokenReviews().Create(ctx, review, metav1.CreateOptions{})
	must(t, err)
	return review.Status
}

// as returns a client that shows a token.
func (c *cluster) as(t *testing.T, token string) kubernetes.Interface {
	t.Helper()
	config := rest.AnonymousClientConfig(c.rest)
	config.BearerToken = token
	api, err := kubernetes.NewForConfig(config)
	must(t, err)
	return api
}

// secretsOf is the directory of an epoch's secrets, as this program sees it.
func (m managed) secretsOf(t *testing.T, pod *corev1.Pod, epoch int64) string {
	t.Helper()
	home := fmt.Sprintf("%s.%s", pod.UID, m.sandboxOf(t, pod).ID)
	return filepath.Join(m.node.NodeRoot, sidecarRoot, home, fmt.Sprintf("secrets-%d", epoch))
}

// tokenAsk is a request for a token of an account.
type tokenAsk struct {
	namespace, account string
	spec               authenticationv1.TokenRequestSpec
}

// Whoever has the agent's token of one node gets with it tokens for the allowed audiences alone, of pods of that node alone.
//
//e2e:rounds nri
func TestSidecarTokensOfOthersAreRefusedToTheAgent(t *testing.T) {
	t.Parallel()
	m := newManaged(t)
	pod := m.startManaged(t, plainPod("here"))
	elsewhere := m.createElsewhere(t)
	good := func() tokenAsk {
		seconds := int64(3600)
		return tokenAsk{m.name, "default", authenticationv1.TokenRequestSpec{
			Audiences: []string{tokenAudience}, ExpirationSeconds: &seconds,
			BoundObjectRef: &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID},
		}}
	}
	agent := m.as(t, m.agentToken(t))
	must(t, askToken(t.Context(), agent, good()))
	ofElsewhere := func(a *tokenAsk) {
		a.spec.BoundObjectRef.Name, a.spec.BoundObjectRef.UID = elsewhere.Name, elsewhere.UID
	}
	eventually(t, "the policy's knowledge of the other node's pod", func(ctx context.Context) error {
		ask := good()
		if ofElsewhere(&ask); askToken(ctx, agent, ask) == nil {
			return errors.New("a token of it is granted")
		}
		return nil
	})

	const wrongAudience, wrongBinding, wrongPod = "only for one of the audiences " + tokenAudience, "only that are bound to a pod, by its name and UID", "the pod is not on the agent's node"
	// Two policies may refuse one token. The API server tells the words of either.
	either := func(err error, words ...string) bool {
		return err != nil && slices.ContainsFunc(words, func(w string) bool { return strings.Contains(err.Error(), w) })
	}
	for name, c := range map[string]struct {
		change func(*tokenAsk)
		words  []string
	}{
		"of another audience":                    {func(a *tokenAsk) { a.spec.Audiences = []string{"vault"} }, []string{wrongAudience}},
		"of one audience more":                   {func(a *tokenAsk) { a.spec.Audiences = append(a.spec.Audiences, "vault") }, []string{wrongAudience}},
		"of the API server's audience":           {func(a *tokenAsk) { a.spec.Audiences = nil }, []string{wrongAudience}},
		"bound to nothing":                       {func(a *tokenAsk) { a.spec.BoundObjectRef = nil }, []string{wrongBinding}},
		"bound to a name without UID":            {func(a *tokenAsk) { a.spec.BoundObjectRef.UID = "" }, []string{wrongBinding, wrongPod}},
		"bound to a Secret":                      {func(a *tokenAsk) { a.spec.BoundObjectRef.Kind = "Secret" }, []string{wrongBinding}},
		"bound to the node":                      {func(a *tokenAsk) { a.spec.BoundObjectRef.Kind, a.spec.BoundObjectRef.Name = "Node", m.node.NodeName }, []string{wrongBinding}},
		"bound to a pod that was before":         {func(a *tokenAsk) { a.spec.BoundObjectRef.UID = "7c1b3f9e-0000-4000-8000-000000000000" }, []string{wrongPod}},
		"bound to a pod of another node":         {ofElsewhere, []string{wrongPod}},
		"of a day and a second":                  {func(a *tokenAsk) { *a.spec.ExpirationSeconds = 24*60*60 + 1 }, []string{"for a day at most"}},
		"of an account that is not the pod's":    {func(a *tokenAsk) { a.account = otherAccount }, []string{"different serviceaccount"}},
		"of an account of another namespace":     {func(a *tokenAsk) { a.namespace = agentName }, []string{"not found"}},
		"of an account of a namespace of no pod": {func(a *tokenAsk) { a.namespace = "kube-public" }, []string{"not found"}},
	} {
		t.Run(name, func(t *testing.T) {
			ask := good()
			c.change(&ask)
			if err := askToken(t.Context(), agent, ask); !either(err, c.words...) {
				t.Errorf("error %v, want one that says %q", err, c.words)
			}
		})
	}
	t.Run("with a token that is bound to no node", func(t *testing.T) {
		account := m.api.CoreV1().ServiceAccounts(agentName)
		unbound, err := account.CreateToken(t.Context(), agentName, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
		must(t, err)
		const words = "the agent's token is not bound to a node"
		if err := askToken(t.Context(), m.as(t, unbound.Status.Token), good()); !either(err, words, wrongPod) {
			t.Errorf("error %v, want one that says %q", err, words)
		}
	})
}

// otherAccount is a ServiceAccount of the test's namespace that no pod has.
const otherAccount = "other"

// createElsewhere makes a pod that is on a node that there is not, and an account that no pod has.
func (m managed) createElsewhere(t *testing.T) *corev1.Pod {
	t.Helper()
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: otherAccount}}
	_, err := m.api.CoreV1().ServiceAccounts(m.name).Create(t.Context(), account, metav1.CreateOptions{})
	must(t, err)
	return m.createOnAnotherNode(t, plainPod("elsewhere"))
}

// createOnAnotherNode makes a pod that is on a node that there is not.
func (s *space) createOnAnotherNode(t *testing.T, pod *corev1.Pod) *corev1.Pod {
	t.Helper()
	pod.Spec.NodeName = "another-node"
	made := s.create(t, pod)
	t.Cleanup(func() { // no kubelet ends it
		now := int64(0)
		err := s.pods().Delete(context.WithoutCancel(t.Context()), pod.Name, metav1.DeleteOptions{GracePeriodSeconds: &now})
		if err != nil && !apierrors.IsNotFound(err) {
			t.Error(err)
		}
	})
	return made
}

// agentToken is the token with which the agent of the node talks to the API server.
func (c *cluster) agentToken(t *testing.T) string {
	t.Helper()
	root := fmt.Sprintf("/proc/%d/root", c.containerPID(t, c.agent(t), "agent"))
	text, err := os.ReadFile(filepath.Join(root, "var/run/secrets/kubernetes.io/serviceaccount/token"))
	must(t, err)
	return string(text)
}

// askToken asks for a token, and drops it.
func askToken(ctx context.Context, as kubernetes.Interface, a tokenAsk) error {
	_, err := as.CoreV1().ServiceAccounts(a.namespace).CreateToken(ctx, a.account, &authenticationv1.TokenRequest{Spec: a.spec}, metav1.CreateOptions{})
	return err
}
