package main

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"istio-pod-network-controller/internal/agentstatus"
	"istio-pod-network-controller/internal/cmdline"
	"istio-pod-network-controller/test/standins/apistandin"
)

// call runs the plugin and gives its exit code and what it wrote: through pipes, as a script sees it.
func call(t *testing.T, args ...string) (code int, out, errOut string) {
	t.Helper()
	var o, e bytes.Buffer
	code = run(args, strings.NewReader("apiVersion: v1\nkind: Pod\nmetadata: {name: cart, annotations: {istio-pod-network-controller/initialize: 'true'}}\nspec: {containers: [{name: istio-proxy}]}\n"), &o, &e)
	return code, o.String(), e.String()
}

// server is an API server that remembers its last request.
type server struct {
	apistandin.Server
	mu   sync.Mutex
	last http.Header
	peer string // of the client's certificate
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	s.last = r.Header.Clone()
	if r.TLS != nil && len(r.TLS.PeerCertificates) > 0 {
		s.peer = r.TLS.PeerCertificates[0].Subject.CommonName
	}
	s.mu.Unlock()
	if r.URL.Path == "/version" {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"major":"1","minor":"36","gitVersion":"v1.36.0"}`))
		return
	}
	s.Server.ServeHTTP(w, r)
}

func (s *server) header(name string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Join(s.last.Values(name), ",")
}

func newServer(t *testing.T) (s *server, url string) {
	t.Helper()
	s = &server{Server: apistandin.Server{
		Pods:       []corev1.Pod{agent()},
		Nodes:      []corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "node"}}},
		Namespaces: []corev1.Namespace{{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}},
	}}
	api := httptest.NewTLSServer(s) // clients send no token without TLS
	t.Cleanup(api.Close)
	return s, api.URL
}

func agent() corev1.Pod {
	status := agentstatus.Status{Version: cmdline.Build().Version, Ready: true, Time: time.Now()}
	return corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "mesh", Name: "agent", Labels: map[string]string{"app.kubernetes.io/name": agentstatus.Name},
			Annotations: map[string]string{agentstatus.Annotation: status.String()}, OwnerReferences: []metav1.OwnerReference{{Kind: "DaemonSet"}},
		},
		Spec:   corev1.PodSpec{NodeName: "node", HostNetwork: true},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}},
	}
}

// kubeconfig writes one. user is YAML of its credentials.
func kubeconfig(t *testing.T, url, user string) string {
	t.Helper()
	return write(t, "config", fmt.Sprintf(`{apiVersion: v1, kind: Config, current-context: c, clusters: [{name: c, cluster: {server: %q, insecure-skip-tls-verify: true}}],
users: [{name: u, user: %s}], contexts: [{name: c, context: {cluster: c, user: u, namespace: shop}}]}`, url, user))
}

func write(t *testing.T, name, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestRun_flagsOfKubectl_reachTheServer(t *testing.T) {
	s, url := newServer(t)
	file := kubeconfig(t, url, "{token: abc}")
	for line, want := range map[string]struct{ header, value string }{
		"--as jane --as-group dev --as-group ops": {"Impersonate-Group", "dev,ops"},
		"--as jane":                  {"Impersonate-User", "jane"},
		"--as jane --as-uid 7":       {"Impersonate-Uid", "7"},
		"--token other":              {"Authorization", "Bearer other"},
		"--user u --cluster c":       {"Authorization", "Bearer abc"},
		"--request-timeout 3s":       {"Authorization", "Bearer abc"},
		"--context c -n shop":        {"Authorization", "Bearer abc"},
		"--server " + url + "/":      {"Authorization", "Bearer abc"},
		"--disable-compression=true": {"Accept-Encoding", ""},
	} {
		code, out, errOut := call(t, append([]string{"status", "--kubeconfig", file}, strings.Fields(line)...)...)
		if code != 0 || !strings.Contains(out, "No pod in namespace shop") || s.header(want.header) != want.value && want.value != "" {
			t.Errorf("%s: code %d, %s is %q, want %q: %s%s", line, code, want.header, s.header(want.header), want.value, out, errOut)
		}
	}
}

// A server that is silent is waited for as long as --request-timeout says.
func TestRun_requestTimeout_isKept(t *testing.T) {
	ended := make(chan struct{})
	silent := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-ended }))
	defer silent.Close()
	defer close(ended)
	code, _, errOut := call(t, "status", "--kubeconfig", kubeconfig(t, silent.URL, "{token: abc}"), "--request-timeout", "20ms")
	if code != 2 || !strings.Contains(errOut, "did not answer in time") {
		t.Errorf("code %d, %q", code, errOut)
	}
}

// KUBECONFIG is a list, and a file's name may have what is special elsewhere: spaces, and on Windows a drive's colon.
func TestRun_kubeconfigs_areAList(t *testing.T) {
	_, url := newServer(t)
	first := write(t, "my config", "{apiVersion: v1, kind: Config, current-context: c}")
	t.Setenv("KUBECONFIG", strings.Join([]string{filepath.Join(t.TempDir(), "none"), first, kubeconfig(t, url, "{token: abc}")}, string(filepath.ListSeparator)))
	if code, out, errOut := call(t, "status"); code != 0 || !strings.Contains(out, "No pod in namespace shop") {
		t.Errorf("code %d, %s%s", code, out, errOut)
	}
	for _, windows := range []string{`C:\Users\jane doe\.kube\config`, `\\server\share\config`} {
		if code, _, errOut := call(t, "status", "--kubeconfig", windows); code != 2 || !strings.Contains(errOut, "config") {
			t.Errorf("%s: code %d, %q", windows, code, errOut)
		}
	}
}

func TestRun_credentials_ofEveryKind(t *testing.T) {
	s, url := newServer(t)
	secure := httptest.NewUnstartedServer(s)
	wantCertificates(secure)
	secure.StartTLS()
	t.Cleanup(secure.Close)
	certificate, key := clientCertificate(t, "jane")
	plugin := func(script string) string {
		return fmt.Sprintf(`{exec: {apiVersion: client.authentication.k8s.io/v1, command: sh, args: ["-c", %q], interactiveMode: Never}}`, script)
	}
	const credential = `printf '{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{"token":"of-plugin"}}'` //nolint:gosec // made up
	for name, tc := range map[string]struct {
		url, user, wantToken, wantErr string
		code                          int
	}{
		"a token":                 {url: url, user: "{token: abc}", wantToken: "Bearer abc"},
		"a token's file":          {url: url, user: fmt.Sprintf("{tokenFile: %q}", write(t, "token", "of-file")), wantToken: "Bearer of-file"},
		"a program":               {url: url, user: plugin(credential), wantToken: "Bearer of-plugin"},
		"a program that fails":    {url: url, user: plugin("exit 1"), wantErr: "log in again", code: 2},
		"a client certificate":    {url: secure.URL, user: fmt.Sprintf("{client-certificate: %q, client-key: %q}", certificate, key)},
		"a certificate that went": {url: secure.URL, user: fmt.Sprintf("{client-certificate: %q, client-key: %q}", certificate+"x", key), wantErr: "no such file", code: 2},
		"nothing":                 {url: url, user: "{}"},
	} {
		code, _, errOut := call(t, "status", "--kubeconfig", kubeconfig(t, tc.url, tc.user))
		if code != tc.code || !strings.Contains(errOut, tc.wantErr) || tc.wantToken != "" && s.header("Authorization") != tc.wantToken {
			t.Errorf("%s: code %d, %q, %s", name, code, s.header("Authorization"), errOut)
		}
	}
	if s.peer != "jane" {
		t.Errorf("the certificate was %q's", s.peer)
	}
	expired := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusUnauthorized)
		_, _ = w.Write([]byte(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Unauthorized","code":401,"message":"no"}`))
	}))
	defer expired.Close()
	if code, _, errOut := call(t, "status", "--kubeconfig", kubeconfig(t, expired.URL, "{token: old}")); code != 2 || !strings.Contains(errOut, "does not accept the credentials") {
		t.Errorf("expired: code %d, %s", code, errOut)
	}
}

func TestRun_noRights_saysWhichAreMissing(t *testing.T) {
	s, url := newServer(t)
	s.Forbids = func(string, string) bool { return true }
	t.Setenv("KUBECONFIG", kubeconfig(t, url, "{token: abc}"))
	for line, want := range map[string]struct {
		code int
		word string
	}{
		"status -A":                    {2, "forbidden"},
		"check":                        {1, "have the right to"},
		"inspect cart":                 {1, "get pod shop/cart"},
		"logs cart":                    {1, "get pod shop/cart"},
		"exec cart -- ls":              {1, "get pod shop/cart"},
		"connectivity test":            {1, "forbidden"},
		"bugreport --file -":           {0, "not read: agents: "},
		"explain -f - --select either": {0, "redirected"}, // asks nobody
	} {
		code, out, errOut := call(t, strings.Fields(line)...)
		if code != want.code || !strings.Contains(out+errOut, want.word) || strings.Contains(out+errOut, "\x1b[") {
			t.Errorf("%s: code %d, %.300q, %s", line, code, out, errOut)
		}
	}
}

// What users read is what they can type, and what only runs on a node is not among it.
func TestRun_help_isThePlugins(t *testing.T) {
	code, out, errOut := call(t, "status", "--help")
	for _, want := range []string{"\n  kubectl pod-network status [flags]", "\n  kubectl pod-network status -A", "--as-group", "--request-timeout"} {
		if code != 0 || !strings.Contains(out, want) {
			t.Errorf("code %d: no %q in %s%s", code, want, out, errOut)
		}
	}
	if code, _, errOut := call(t, "stauts"); code != 1 || !strings.Contains(errOut, `for "kubectl pod-network": did you mean status?`) {
		t.Errorf("code %d, %s", code, errOut)
	}
	for _, command := range []string{"run", "rules", "cni", "sidecar"} {
		if code, _, errOut := call(t, command); code != 1 || !strings.Contains(errOut, "unknown command") {
			t.Errorf("%s: code %d, %s", command, code, errOut)
		}
	}
	for _, line := range []string{"check --node", "inspect --local shop/cart", "connectivity stand-in"} {
		if code, _, _ := call(t, strings.Fields(line)...); code == 0 {
			t.Errorf("%s: code 0", line)
		}
	}
	if code, out, _ := call(t, "__complete", "sta"); code != 0 || !strings.HasPrefix(out, "status\t") {
		t.Errorf("code %d, %q", code, out)
	}
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		if code, out, _ := call(t, "completion", shell); code != 0 || !strings.Contains(out, "kubectl-pod_network") {
			t.Errorf("%s: code %d, %.80q", shell, code, out)
		}
	}
}
