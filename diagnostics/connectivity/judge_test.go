package connectivity

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"istio-pod-network-controller/internal/podreport"
)

func TestClient_answers_areJudged(t *testing.T) {
	target := netip.MustParseAddr("192.0.2.2")
	at := func(port uint16) netip.AddrPort { return netip.AddrPortFrom(target, port) }
	c := Client{Pod: "client", Server: "server"}
	proof := func(port, proof int) func(Answer, error) string { // of the answer at one of the three ports
		return func(a Answer, err error) string {
			answers, errs := make([]Answer, 3), make([]error, 3)
			answers[port], errs[port] = a, err
			return c.judge(target, answers, errs)[proof].Why
		}
	}
	outbound, proxy, inbound, excluded := proof(0, 0), proof(0, 1), proof(1, 2), proof(2, 3)
	elsewhere := netip.MustParseAddrPort("192.0.2.9:8080")
	for name, tc := range map[string]struct{ have, want string }{
		"the proxy took it":                   {outbound(Answer{Role: RoleOutbound, Pod: "client", Dst: at(portCaptured)}, nil), ""},
		"the proxy lost the destination":      {outbound(Answer{Role: RoleOutbound, Pod: "client", Dst: elsewhere}, nil), "sees the destination 192.0.2.9:8080 instead of 192.0.2.2:8080"},
		"another pod's proxy took it":         {outbound(Answer{Role: RoleOutbound, Pod: "other", Dst: at(portCaptured)}, nil), "the proxy of other"},
		"nobody answered":                     {outbound(Answer{}, errors.New("connection refused")), "connection refused"},
		"somebody else answered":              {outbound(Answer{}, nil), `"" of ""`},
		"the server's proxy took it":          {inbound(Answer{Role: RoleInbound, Pod: "server", Dst: at(portEntering)}, nil), ""},
		"the server's proxy lost it":          {inbound(Answer{Role: RoleInbound, Pod: "server", Dst: at(portInbound)}, nil), "instead of 192.0.2.2:8081"},
		"the application took it":             {excluded(Answer{Role: RoleApplication, Pod: "server"}, nil), ""},
		"the client's application took it":    {excluded(Answer{Role: RoleApplication, Pod: "client"}, nil), "the application of client"},
		"the proxy reached the server":        {proxy(Answer{Role: RoleOutbound, Next: &Answer{Role: RoleInbound, Pod: "server"}}, nil), ""},
		"the proxy reached another pod":       {proxy(Answer{Role: RoleOutbound, Next: &Answer{Role: RoleInbound, Pod: "other"}}, nil), "instead of server"},
		"the proxy could not connect":         {proxy(Answer{Role: RoleOutbound, Dst: elsewhere, Fault: "refused"}, nil), "192.0.2.9:8080: refused"},
		"the proxy was not asked":             {proxy(Answer{Role: RoleApplication}, nil), notTried},
		"a long reason fits into the message": {short(strings.Repeat("é", maxWhy)), "..."},
	} {
		if (tc.have == "") != (tc.want == "") || !strings.Contains(tc.have, tc.want) || len(tc.have) > maxWhy+3 {
			t.Errorf("%s: %q, want %q", name, tc.have, tc.want)
		}
	}
}

// A run without proofs has proven nothing.
func TestProven_noLines_isFalse(t *testing.T) {
	if Proven(nil) || !Proven([]Line{{OK: true}}) || Proven([]Line{{OK: true}, {}}) {
		t.Error("nothing, or not everything, counts as proven")
	}
}

func TestReported_status_isJudged(t *testing.T) {
	for status, want := range map[podreport.Status]string{
		podreport.StatusInitialized: "", podreport.StatusFailed: "pod client: failed: because", podreport.StatusRemoved: "removed", "": "no agent has written",
	} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "client", Annotations: map[string]string{podreport.KeyStatus: string(status)}}}
		pod.Status.Conditions = []corev1.PodCondition{{Type: podreport.Condition, Message: "because"}}
		if status == "" {
			pod.Annotations = nil
		}
		if got := reported(pod); (got == "") != (want == "") || !strings.Contains(got, want) {
			t.Errorf("%s: %q, want %q", status, got, want)
		}
	}
}

func TestPassOn_loop_endsAtTheSecondHop(t *testing.T) {
	dialled := 0
	s := Server{Dial: func(context.Context, string, string) (net.Conn, error) { dialled++; return nil, errors.New("refused") }}
	if a, fault := s.passOn(t.Context(), netip.MustParseAddrPort("192.0.2.2:80"), http.Header{headerPassedOn: {"true"}}); a != nil || fault == "" || dialled != 0 {
		t.Errorf("%+v, %q, %d connections", a, fault, dialled)
	}
}

func TestAsk_badAnswers_areRefused(t *testing.T) {
	for name, answer := range map[string]string{"no end": `"` + strings.Repeat("x", 2*maxAnswer), "no JSON": "hello\n", "nothing": ""} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, answer) }))
		a, err := Dialer(nil).ask(t.Context(), netip.MustParseAddrPort(server.Listener.Addr().String()), http.Header{}, dialLimit)
		server.Close()
		if err == nil {
			t.Errorf("%s: read %+v", name, a)
		}
	}
}

// The context of an interrupted run is over; what deletes the namespace must not use it.
func TestRun_interrupted_deletesItsNamespace(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	var deleted atomic.Bool
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		var answer any = &corev1.Pod{TypeMeta: metav1.TypeMeta{Kind: "Pod", APIVersion: "v1"}}
		switch {
		case r.URL.Path == "/api/v1/nodes":
			answer = &corev1.NodeList{TypeMeta: metav1.TypeMeta{Kind: "NodeList", APIVersion: "v1"}, Items: []corev1.Node{*node("a", nil)}}
		case r.Method == http.MethodDelete && strings.HasPrefix(r.URL.Path, "/api/v1/namespaces/pod-network-test-"):
			deleted.Store(true)
		case strings.HasSuffix(r.URL.Path, "/pods"):
			cancel()
		case deleted.Load():
			w.WriteHeader(http.StatusNotFound)
			answer = &metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Reason: metav1.StatusReasonNotFound, Code: http.StatusNotFound}
		}
		_ = json.NewEncoder(w).Encode(answer)
	}))
	t.Cleanup(server.Close)
	client, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	tester := newTester(nil)
	tester.Client = client
	if _, err := tester.Run(ctx); !errors.Is(err, context.Canceled) || strings.Contains(err.Error(), "clean up: ") {
		t.Error(err)
	}
	if !deleted.Load() {
		t.Error("the namespace is left")
	}
}
