package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
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
	"sigs.k8s.io/yaml"
)

// Status tells the truth before and after a wrong edit, to an account that may do no more than the sample grants.
//
//e2e:rounds core nftables
func TestStatusTellsTheTruth(t *testing.T) {
	t.Parallel()
	s := newSpace(t, asked())
	s.startMesh(t, meshPod("cart", nil))
	reader := s.kubeconfigAs(t, "default", s.applyStatusReader(t))

	s.awaitStatus(t, reader, 0, "cart", "programmed", s.node.NodeName, "nftables watch", "1 pod in namespace "+s.name+": 1 programmed.")
	s.annotate(t, "cart", map[string]any{keyExcludeInbound: "9100,http"})
	s.awaitStatus(t, reader, 0, "cart", "programmed", "without effect", "1 pod in namespace "+s.name+": 1 programmed.")
	s.create(t, meshPod("wrong", map[string]string{keyExcludeInbound: "9100,http"}))
	s.awaitStatus(t, reader, 1, "wrong", "failed", `"9100,http"`, "2 pods in namespace "+s.name+": 1 failed, 1 programmed.")
	must(t, s.pods().Delete(t.Context(), "wrong", metav1.DeleteOptions{}))
	s.annotate(t, "cart", map[string]any{keyExcludeInbound: nil})
	s.awaitStatus(t, reader, 0, "cart", "programmed")

	s.awaitListed(t, reader)
	out, _ := runStatus(t.Context(), t, reader, "-A", "-o", "wide")
	t.Logf("all that there is:\n%s", out)
	nobody := s.kubeconfigAs(t, s.name, "default")
	if out, code := runStatus(t.Context(), t, nobody, "-n", s.name); code != 2 || !strings.Contains(out, "forbidden") || !strings.Contains(out, "config/samples/status-reader.yaml") {
		t.Errorf("without any right: exit code %d, %s", code, out)
	}
}

// awaitListed waits until the node's agent says that it is ready, and the pod is listed.
func (s *space) awaitListed(t *testing.T, kubeconfig string) {
	t.Helper()
	name := agentName + "/" + s.agent(t).Name
	eventually(t, "the agent's status", func(ctx context.Context) error {
		out, code := runStatus(ctx, t, kubeconfig, "-n", s.name, "-o", "json")
		got := decode[struct {
			Nodes []struct {
				Agent  string
				Status struct {
					Version, Backend string
					Ready            bool
				}
			}
			Pods []struct{ State string }
		}](t, out)
		if n := got.Nodes; code != 0 || len(n) != 1 || n[0].Agent != name || !n[0].Status.Ready || n[0].Status.Backend == "" || len(got.Pods) == 0 || got.Pods[0].State != "programmed" {
			return fmt.Errorf("exit code %d, %+v", code, n)
		}
		return nil
	})
}

// awaitStatus waits until status ends with a code, and says all of the words. Runs of blanks count as one.
func (s *space) awaitStatus(t *testing.T, kubeconfig string, wantCode int, words ...string) {
	t.Helper()
	eventually(t, fmt.Sprintf("status with exit code %d", wantCode), func(ctx context.Context) error {
		out, code := runStatus(ctx, t, kubeconfig, "-n", s.name)
		out = strings.Join(strings.Fields(out), " ")
		for _, word := range words {
			if word == "nftables watch" && os.Getenv("E2E_BACKEND") == "iptables" {
				word = "iptables watch"
			}
			if !strings.Contains(out, word) {
				return fmt.Errorf("no %q in: %s", word, out)
			}
		}
		if code != wantCode {
			return fmt.Errorf("exit code %d: %s", code, out)
		}
		return nil
	})
}

// runStatus runs the command and gives what it printed and its exit code.
func runStatus(ctx context.Context, t *testing.T, kubeconfig string, args ...string) (out string, code int) {
	t.Helper()
	cmd := exec.CommandContext(ctx, "../../build/"+agentName, append([]string{"status", "--kubeconfig", kubeconfig}, args...)...)
	data, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return string(data), cmd.ProcessState.ExitCode()
}

// applyStatusReader applies the sample, makes the account that it names, and gives the account's name.
func (c *cluster) applyStatusReader(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../../config/samples/status-reader.yaml")
	must(t, err)
	documents := strings.Split(string(text), "\n---\n")
	var role rbacv1.ClusterRole
	var binding rbacv1.ClusterRoleBinding
	must(t, errors.Join(yaml.UnmarshalStrict([]byte(documents[0]), &role), yaml.UnmarshalStrict([]byte(documents[1]), &binding)))
	account := binding.Subjects[0]
	_, err1 := c.api.RbacV1().ClusterRoles().Create(t.Context(), &role, metav1.CreateOptions{})
	_, err2 := c.api.RbacV1().ClusterRoleBindings().Create(t.Context(), &binding, metav1.CreateOptions{})
	_, err3 := c.api.CoreV1().ServiceAccounts(account.Namespace).Create(t.Context(),
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: account.Name}}, metav1.CreateOptions{})
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		must(t, errors.Join(
			c.api.RbacV1().ClusterRoles().Delete(ctx, role.Name, metav1.DeleteOptions{}),
			c.api.RbacV1().ClusterRoleBindings().Delete(ctx, binding.Name, metav1.DeleteOptions{}),
			c.api.CoreV1().ServiceAccounts(account.Namespace).Delete(ctx, account.Name, metav1.DeleteOptions{}),
		))
	})
	must(t, errors.Join(err1, err2, err3))
	return account.Name
}

// kubeconfigAs gives the file of a kubeconfig of a service account.
func (c *cluster) kubeconfigAs(t *testing.T, namespace, account string) string {
	t.Helper()
	token, err := c.api.CoreV1().ServiceAccounts(namespace).CreateToken(t.Context(), account, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	must(t, err)
	config := clientcmdapi.NewConfig()
	config.Clusters["e2e"] = &clientcmdapi.Cluster{Server: c.rest.Host, CertificateAuthority: c.rest.CAFile, CertificateAuthorityData: c.rest.CAData}
	config.AuthInfos["e2e"] = &clientcmdapi.AuthInfo{Token: token.Status.Token}
	config.Contexts["e2e"] = &clientcmdapi.Context{Cluster: "e2e", AuthInfo: "e2e"}
	config.CurrentContext = "e2e"
	file := filepath.Join(t.TempDir(), "kubeconfig")
	must(t, clientcmd.WriteToFile(*config, file))
	return file
}
