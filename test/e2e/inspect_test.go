package e2e

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// inspection is the part of a document of `inspect -o json` that tests read.
type inspection struct {
	Node  string `json:"node"`
	Asked struct {
		Redirect bool `json:"redirect"`
		Settings []struct{ Name, Value, Source string }
	} `json:"asked"`
	Programmed struct {
		Backend string `json:"backend"`
		Rules   []struct {
			Packets uint64 `json:"packets"`
		} `json:"rules"`
	} `json:"programmed"`
	Agreement struct {
		Verdict     string   `json:"verdict"`
		Differences []string `json:"differences"`
	} `json:"agreement"`
	Events struct {
		Error string `json:"error"`
	} `json:"events"`
}

// developer is a ServiceAccount that may get the pods and list the events of its namespace, and find agents. No more.
type developer struct {
	*space
	kubeconfig, token string
}

func (s *space) newDeveloper(t *testing.T) developer {
	t.Helper()
	_, err := s.api.CoreV1().ServiceAccounts(s.name).Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "dev"}}, metav1.CreateOptions{})
	must(t, err)
	_, err = s.api.RbacV1().Roles(s.name).Create(t.Context(), &rbacv1.Role{
		ObjectMeta: metav1.ObjectMeta{Name: "dev"},
		Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"get"}},
			{APIGroups: []string{""}, Resources: []string{"events"}, Verbs: []string{"list"}},
		},
	}, metav1.CreateOptions{})
	must(t, err)
	s.bindRole(t, s.name, "dev")
	s.bindRole(t, agentName, agentName+"-inspect")
	d := developer{space: s, token: s.tokenOf(t)}
	d.kubeconfig = s.kubeconfigOf(t, d.token)
	return d
}

// bindRole gives a Role to the space's developer. The binding goes with the test.
func (s *space) bindRole(t *testing.T, namespace, role string) {
	t.Helper()
	name := s.name + "-" + role
	_, err := s.api.RbacV1().RoleBindings(namespace).Create(t.Context(), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: role},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: s.name, Name: "dev"}},
	}, metav1.CreateOptions{})
	must(t, err)
	t.Cleanup(func() {
		must(t, s.api.RbacV1().RoleBindings(namespace).Delete(context.WithoutCancel(t.Context()), name, metav1.DeleteOptions{}))
	})
}

func (s *space) tokenOf(t *testing.T, audiences ...string) string {
	t.Helper()
	answer, err := s.api.CoreV1().ServiceAccounts(s.name).CreateToken(t.Context(), "dev",
		&authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{Audiences: audiences}}, metav1.CreateOptions{})
	must(t, err)
	return answer.Status.Token
}

func (s *space) kubeconfigOf(t *testing.T, token string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "kubeconfig")
	must(t, clientcmd.WriteToFile(clientcmdapi.Config{
		Clusters: map[string]*clientcmdapi.Cluster{"c": {
			Server: s.rest.Host, CertificateAuthorityData: s.rest.CAData, CertificateAuthority: s.rest.CAFile,
		}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{"dev": {Token: token}},
		Contexts:       map[string]*clientcmdapi.Context{"dev": {Cluster: "c", AuthInfo: "dev", Namespace: s.name}},
		CurrentContext: "dev",
	}, file))
	return file
}

// inspect runs the command with a kubeconfig; "" is the administrator's.
func inspect(ctx context.Context, t *testing.T, kubeconfig string, args ...string) (out, errOut string, code int) {
	t.Helper()
	if kubeconfig != "" {
		args = append(args, "--kubeconfig", kubeconfig)
	}
	cmd := exec.CommandContext(ctx, agentProgram(t), append([]string{"inspect"}, args...)...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		var ended *exec.ExitError
		if !errors.As(err, &ended) {
			t.Fatal(err)
		}
		code = ended.ExitCode()
	}
	return stdout.String(), stderr.String(), code
}

func wantInspected(t *testing.T, kubeconfig string, args ...string) inspection {
	t.Helper()
	out, errOut, code := inspect(t.Context(), t, kubeconfig, append(args, "-o", "json")...)
	if code != 0 {
		t.Fatalf("inspect %v: exit code %d: %s%s", args, code, out, errOut)
	}
	return decode[inspection](t, out)
}

func wantRefused(t *testing.T, kubeconfig, why string, args ...string) {
	t.Helper()
	out, errOut, code := inspect(t.Context(), t, kubeconfig, args...)
	if code != 1 || !strings.Contains(errOut, why) {
		t.Errorf("inspect %v: exit code %d, want 1 with %q: %s%s", args, code, why, out, errOut)
	}
}

// A developer who may get a pod sees what is programmed in it, without any right in the agents' namespace that is worth more than a list of pods.
//
//e2e:rounds nftables iptables
func TestInspectAnswersWhoMayGetThePod(t *testing.T) {
	t.Parallel()
	s := newSpace(t, asked())
	pod := s.startMesh(t, meshPod("inspected", map[string]string{keyExcludeInbound: "9100"}))
	d := s.newDeveloper(t)
	s.awaitInspect(t)
	s.settledRules(t, pod) // rules that are written anew count from nothing
	wantInbound(t, pod, families()[0], appPort, true)

	doc := wantInspected(t, d.kubeconfig, pod.Name, "--via", "direct")
	wantInOrder(t, doc)
	text, _, _ := inspect(t.Context(), t, d.kubeconfig, pod.Name)
	t.Logf("what people see:\n%s", text)

	wantRefused(t, d.kubeconfig, "pods/proxy", pod.Name, "--via", "tunnel")
	wantRefused(t, d.kubeconfig, "pods/exec", pod.Name, "--via", "exec")
	s.bindRole(t, agentName, agentName+"-inspect-tunnel")
	eventually(t, "the right to the tunnel", func(ctx context.Context) error {
		if _, errOut, code := inspect(ctx, t, d.kubeconfig, pod.Name, "--via", "tunnel"); code != 0 {
			return fmt.Errorf("exit code %d: %s", code, errOut)
		}
		return nil
	})
	wantInOrder(t, wantInspected(t, d.kubeconfig, pod.Name, "--via", "tunnel"))
	wantInOrder(t, wantInspected(t, "", s.name+"/"+pod.Name, "--via", "exec"))
	wantInOrder(t, wantInspected(t, d.kubeconfig, pod.Name, "--via", "direct", "--agent-token", s.tokenOf(t, agentName)))
	wantRefused(t, d.kubeconfig, "does not accept this token", pod.Name, "--via", "direct", "--agent-token", s.tokenOf(t, "somebody-else"))
}

func wantInOrder(t *testing.T, doc inspection) {
	t.Helper()
	if doc.Agreement.Verdict != "agree" || !doc.Asked.Redirect || doc.Programmed.Backend != backend() || doc.Events.Error != "" {
		t.Errorf("document %+v", doc)
	}
	packets, sources := uint64(0), ""
	for _, r := range doc.Programmed.Rules {
		packets += r.Packets
	}
	for _, setting := range doc.Asked.Settings {
		sources += setting.Source + "\n"
	}
	if packets == 0 || !strings.Contains(sources, keyExcludeInbound) {
		t.Errorf("%d packets were counted by %d rules; settings come from\n%s", packets, len(doc.Programmed.Rules), sources)
	}
}

// Others' pods are refused by the agent itself, and in the same words whether they are there or not.
//
//e2e:rounds nftables iptables
func TestInspectRefusesOthersPods(t *testing.T) {
	t.Parallel()
	s, other := newSpace(t, asked()), newSpace(t, asked())
	d := s.newDeveloper(t)
	pod := other.startMesh(t, meshPod("secret", nil))
	port := s.awaitInspect(t)
	wantRefused(t, d.kubeconfig, "right to get pods in namespace "+other.name, other.name+"/"+pod.Name)

	agent := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}} //nolint:gosec // nothing secret is sent but a test's token
	ask := func(name string) string {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, fmt.Sprintf("https://%s:%d/v1/pods/%s/%s", s.node.ip(), port, other.name, name), http.NoBody)
		must(t, err)
		request.Header.Set("Authorization", "Bearer "+d.token)
		response, err := agent.Do(request)
		must(t, err)
		defer response.Body.Close()
		body, err := io.ReadAll(response.Body)
		must(t, err)
		return response.Status + " " + string(body)
	}
	there, gone := ask(pod.Name), ask("terces")
	if !strings.HasPrefix(there, "403") || strings.ReplaceAll(gone, "terces", pod.Name) != there {
		t.Errorf("of a pod that is there: %s; of one that is not: %s", there, gone)
	}
}

// Rules that somebody has taken away are shown as a difference until the agent puts them back.
//
//e2e:rounds core nftables iptables
func TestInspectShowsDrift(t *testing.T) {
	t.Parallel()
	s := newSpace(t, asked())
	pod := s.startMesh(t, meshPod("drifting", nil))
	d := s.newDeveloper(t)
	s.awaitInspect(t)
	netns := s.sandboxOf(t, pod).here(s.cluster)
	eventually(t, "a difference", func(ctx context.Context) error { // the agent may be quicker
		if out, err := exec.CommandContext(ctx, agentProgram(t), "rules", "remove", "--backend", backend(), "--netns", netns).CombinedOutput(); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		out, errOut, code := inspect(ctx, t, d.kubeconfig, pod.Name, "-o", "json")
		if code != 3 {
			return fmt.Errorf("exit code %d: %s%s", code, out, errOut)
		}
		if doc := decode[inspection](t, out); doc.Agreement.Verdict != "differ" || len(doc.Agreement.Differences) == 0 {
			return fmt.Errorf("agreement %+v", doc.Agreement)
		}
		return nil
	})
	eventually(t, "the rules' return", func(ctx context.Context) error {
		if out, errOut, code := inspect(ctx, t, d.kubeconfig, pod.Name); code != 0 {
			return fmt.Errorf("exit code %d: %s%s", code, out, errOut)
		}
		return nil
	})
}

// awaitInspect waits until the agent says where it answers.
func (s *space) awaitInspect(t *testing.T) (port int) {
	t.Helper()
	eventually(t, "the agent's word on where it answers", func(ctx context.Context) error {
		agent, err := s.findAgent(ctx)
		if err != nil {
			return err
		}
		var said struct {
			Inspect struct {
				Port int `json:"port"`
			} `json:"inspect"`
		}
		text := agent.Annotations["pod-network-controller.istio.io/agent"]
		if err := json.Unmarshal([]byte(text), &said); err != nil || said.Inspect.Port == 0 {
			return fmt.Errorf("it says %q: %w", text, errors.Join(err, errors.ErrUnsupported))
		}
		port = said.Inspect.Port
		return nil
	})
	return port
}
