package inspectserver

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"istio-pod-network-controller/controllers"
	"istio-pod-network-controller/diagnostics/inspect"
	"istio-pod-network-controller/internal/agentstatus"
	"istio-pod-network-controller/internal/apiauth"
	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/internal/serving"
	"istio-pod-network-controller/iptables"
	"istio-pod-network-controller/iptables/kernel"
)

// reviews is an API server that knows the tokens "dev" and "own", which only the agent's audience has, and lets both get pods of shop.
type reviews struct {
	mu             sync.Mutex
	tokens, rights []string
	err            bool
}

func ownToken() string {
	claims := base64.RawURLEncoding.EncodeToString([]byte(`{"aud":["` + inspect.Audience + `"]}`))
	return "head." + claims + ".own"
}

func (a *reviews) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	body, err := io.ReadAll(r.Body)
	if err != nil || a.err {
		http.Error(w, "no", http.StatusInternalServerError)
		return
	}
	var answer any
	switch {
	case strings.HasSuffix(r.URL.Path, "/tokenreviews"):
		var review authenticationv1.TokenReview
		_ = json.Unmarshal(body, &review)
		a.tokens = append(a.tokens, review.Spec.Token)
		asked := strings.Join(review.Spec.Audiences, ",")
		review.Status.Authenticated = review.Spec.Token == "dev" && asked == "" || review.Spec.Token == ownToken() && asked == inspect.Audience
		review.Status.Audiences = review.Spec.Audiences
		review.Status.User = authenticationv1.UserInfo{Username: "dev", Groups: []string{"developers"}, Extra: map[string]authenticationv1.ExtraValue{"k": {"v"}}}
		answer = review
	default:
		var review authorizationv1.SubjectAccessReview
		_ = json.Unmarshal(body, &review)
		at := review.Spec.ResourceAttributes
		a.rights = append(a.rights, fmt.Sprintf("%s %v %v %s %s %s/%s", review.Spec.User, review.Spec.Groups, review.Spec.Extra, at.Verb, strings.TrimSuffix(at.Resource+"/"+at.Subresource, "/"), at.Namespace, at.Name))
		review.Status.Allowed = at.Namespace == "shop" && review.Spec.User == "dev"
		answer = review
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(answer)
}

// oneNode has the pod shop/cart, and calls of Look wait for release if it is not nil. The pod is busy for the first calls.
type oneNode struct {
	client.Reader // nil: it lists nothing

	looks   int
	entered atomic.Int32
	busy    int
	err     error
	release chan struct{}
	looked  controllers.Looked
}

func (n *oneNode) Get(_ context.Context, name types.NamespacedName, into client.Object, _ ...client.GetOption) error {
	if name.String() != "shop/cart" {
		return apierrors.NewNotFound(corev1.Resource("pods"), name.Name)
	}
	into.SetNamespace("shop")
	into.SetName("cart")
	into.SetUID("uid-1")
	return nil
}

func (n *oneNode) Look(ctx context.Context, _ podnet.Sandbox, read func(context.Context, controllers.Looked) error) error {
	n.entered.Add(1)
	if n.release != nil {
		select {
		case <-n.release:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if n.looks++; n.err != nil {
		return n.err
	}
	if n.looks <= n.busy {
		return controllers.ErrBusy
	}
	out := n.looked
	out.Pod = &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "cart", UID: "uid-1"}}
	return read(ctx, out)
}

// fakeKernel holds what a test says.
type fakeKernel struct {
	held kernel.Held
	err  error
}

func (k fakeKernel) Unheard(_ context.Context, _ podnet.Place, ports []uint16) ([]uint16, error) {
	return ports, k.err
}

func (k fakeKernel) Look(context.Context, podnet.Place, *iptables.Ruleset) (kernel.Held, error) {
	return k.held, k.err
}

func (n *oneNode) looker(k fakeKernel) *Looker {
	return NewLooker("node1", "mesh-system", func() inspect.Agent { return inspect.Agent{Version: "1", Backend: "nftables"} }, k, func() (Core, client.Reader, error) { return n, n, nil })
}

// served serves a looker, and returns where, and the API server's address.
func served(t *testing.T, l *Looker) (*reviews, *agentstatus.Inspect) {
	t.Helper()
	api := &reviews{}
	server := httptest.NewServer(api)
	t.Cleanup(server.Close)
	i := Server{Addr: "127.0.0.1:0", Look: l, Ports: &serving.Ports{}, At: &atomic.Pointer[agentstatus.Inspect]{}}
	stop, err := i.serveTLS(t.Context(), &rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	return api, i.At.Load()
}

// direct dials a port of this node.
func direct(port int) func(context.Context) (net.Conn, error) {
	return func(ctx context.Context) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	}
}

func callerOfAgent(at *agentstatus.Inspect, token string) inspect.Client {
	return inspect.Client{Certificate: at.Certificate, Token: token, Dial: direct(at.Port)}
}

func codeOf(t *testing.T, err error) int {
	t.Helper()
	var refusal *inspect.Refusal
	if !errors.As(err, &refusal) {
		t.Fatalf("error %v, want a refusal", err)
	}
	return refusal.Code
}

func TestWhoMayGetAPodIsToldAboutIt(t *testing.T) {
	node := &oneNode{}
	api, at := served(t, node.looker(fakeKernel{}))
	for name, token := range map[string]string{"by a token of the API server's": "dev", "by a token for the agent alone": ownToken()} {
		t.Run(name, func(t *testing.T) {
			doc, err := callerOfAgent(at, token).Get(t.Context(), "shop", "cart")
			if err != nil || doc.Pod != "shop/cart" || doc.Node != "node1" || doc.Agent.Backend != "nftables" {
				t.Errorf("document %+v, error %v", doc, err)
			}
		})
	}
	if len(api.rights) != 2 || api.rights[0] != "dev [developers] map[k:[v]] get pods shop/cart" {
		t.Errorf("the API server was asked %q", api.rights)
	}
	before := len(api.tokens) + len(api.rights)
	if _, err := callerOfAgent(at, "dev").Get(t.Context(), "shop", "cart"); err != nil || len(api.tokens)+len(api.rights) != before {
		t.Errorf("error %v; the API server was asked again within seconds: %q %q", err, api.tokens, api.rights)
	}
}

// Who may not get a pod does not learn whether there is one, and nothing is looked at.
func TestWhoMayNotGetAPodLearnsNothing(t *testing.T) {
	node := &oneNode{}
	_, at := served(t, node.looker(fakeKernel{}))
	_, errThere := callerOfAgent(at, "dev").Get(t.Context(), "secret", "cart")
	_, errGone := callerOfAgent(at, "dev").Get(t.Context(), "secret", "tacr")
	if codeOf(t, errThere) != http.StatusForbidden || strings.ReplaceAll(errGone.Error(), "tacr", "cart") != errThere.Error() {
		t.Errorf("of a pod that may be there: %v; of one that is not: %v", errThere, errGone)
	}
	for name, token := range map[string]string{"a token that nobody knows": "stolen", "no token": "", "a token of another audience": ownToken() + "x"} {
		if _, err := callerOfAgent(at, token).Get(t.Context(), "shop", "cart"); codeOf(t, err) != http.StatusUnauthorized {
			t.Errorf("%s: %v", name, err)
		}
	}
	if node.looks != 0 {
		t.Errorf("%d pods were looked at", node.looks)
	}
}

func TestRefusalsSayWhatToDo(t *testing.T) {
	for name, tc := range map[string]struct {
		node       *oneNode
		in         string
		apiAway    bool
		notRead    bool
		want       int
		wantInText string
	}{
		"a pod of another node":                 {node: &oneNode{}, in: "shop/other", want: http.StatusNotFound, wantInText: "node1 knows no pod shop/other"},
		"a pod that is being programmed":        {node: &oneNode{err: controllers.ErrBusy}, in: "shop/cart", want: http.StatusServiceUnavailable, wantInText: "try again"},
		"a pod that was deleted meanwhile":      {node: &oneNode{err: podnet.ErrNoPod}, in: "shop/cart", want: http.StatusNotFound, wantInText: "deleted"},
		"an error of the core":                  {node: &oneNode{err: errors.New("boom")}, in: "shop/cart", want: http.StatusInternalServerError, wantInText: "boom"},
		"no answer of the API server":           {node: &oneNode{}, in: "shop/cart", apiAway: true, want: http.StatusInternalServerError, wantInText: "could not ask the API server"},
		"an agent that has not read its pods":   {node: &oneNode{}, in: "shop/cart", notRead: true, want: http.StatusServiceUnavailable, wantInText: "try again"},
		"a name that is none":                   {node: &oneNode{}, in: "shop/Cart", want: http.StatusBadRequest, wantInText: "want the path"},
		"a namespace that is none":              {node: &oneNode{}, in: "Shop/cart", want: http.StatusBadRequest, wantInText: "want the path"},
		"a pod that does not answer in time":    {node: &oneNode{err: context.DeadlineExceeded}, in: "shop/cart", want: http.StatusServiceUnavailable, wantInText: "try again"},
		"another pod of the agent's own kind":   {node: &oneNode{}, in: "mesh-system/agent", want: http.StatusForbidden, wantInText: "not allowed"},
		"a pod whose name has a slash, escaped": {node: &oneNode{}, in: "shop/a%2fb", want: http.StatusBadRequest, wantInText: "want the path"},
	} {
		t.Run(name, func(t *testing.T) {
			l := tc.node.looker(fakeKernel{})
			if tc.notRead {
				l.core = func() (Core, client.Reader, error) { return nil, nil, podnet.ErrPodsUnknown }
			}
			api, at := served(t, l)
			api.err = tc.apiAway
			namespace, pod, _ := strings.Cut(tc.in, "/")
			pod, _ = url.PathUnescape(pod)
			_, err := callerOfAgent(at, "dev").Get(t.Context(), namespace, pod)
			if codeOf(t, err) != tc.want || !strings.Contains(err.Error(), tc.wantInText) {
				t.Errorf("%v, want %d with %q", err, tc.want, tc.wantInText)
			}
		})
	}
}

// The scheme's name is in any letters (RFC 9110, 11.1).
func TestAdmit_scheme_isInAnyLetters(t *testing.T) {
	for _, scheme := range []string{"Bearer", "bearer", "BEARER"} {
		var told string
		h := handler{check: func(_ context.Context, token string, _ apiauth.Attributes) error { told = token; return nil }}
		r := httptest.NewRequest(http.MethodGet, "/", http.NoBody)
		r.SetPathValue("namespace", "shop")
		r.SetPathValue("name", "cart")
		r.Header.Set("Authorization", scheme+" dev")
		if _, _, err := h.admit(t.Context(), r, apiauth.Attributes{Verb: "get"}); err != nil || told != "dev" {
			t.Errorf("%s: told %q, error %v", scheme, told, err)
		}
	}
}

// A bug in a look costs one answer.
func TestAPanicOfALookIsAnAnswer(t *testing.T) {
	l := (&oneNode{}).looker(fakeKernel{})
	l.core = func() (Core, client.Reader, error) { panic("boom") } //nolint:forbidigo // the case
	_, at := served(t, l)
	for range 2 {
		if _, err := callerOfAgent(at, "dev").Get(t.Context(), "shop", "cart"); codeOf(t, err) != http.StatusInternalServerError {
			t.Error(err)
		}
	}
}

// The agent's own namespace is not shown even to those who may get its pods.
func TestTheAgentsOwnNamespaceIsNotShown(t *testing.T) {
	_, err := (&oneNode{}).looker(fakeKernel{}).Document(t.Context(), "mesh-system", "agent")
	if codeOf(t, err) != http.StatusForbidden {
		t.Error(err)
	}
}

// A client sends its token to nobody but the agent that it was told of.
func TestAnotherCertificateGetsNoToken(t *testing.T) {
	heard := make(chan string, 1)
	impostor := httptest.NewTLSServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { heard <- r.Header.Get("Authorization") }))
	defer impostor.Close()
	impostor.Config.ErrorLog = nil
	_, at := served(t, (&oneNode{}).looker(fakeKernel{}))
	to := impostor.Listener.Addr().(*net.TCPAddr)
	for name, c := range map[string]inspect.Client{
		"another server":           {Certificate: at.Certificate, Token: "dev", Dial: direct(to.Port)},
		"no certificate to expect": {Token: "dev", Dial: direct(at.Port)},
	} {
		if _, err := c.Get(t.Context(), "shop", "cart"); err == nil || !strings.Contains(err.Error(), "certificate") {
			t.Errorf("%s: error %v", name, err)
		}
	}
	select {
	case token := <-heard:
		t.Errorf("it got %q", token)
	default:
	}
}
