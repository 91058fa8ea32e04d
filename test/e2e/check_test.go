package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// program is the product on this machine, built with the image.
const program = "../../build/istio-pod-network-controller"

// finished is how a program ended.
type finished struct {
	out, errOut string
	code        int
}

func finish(t testing.TB, name string, args ...string) finished {
	t.Helper()
	var out, errOut bytes.Buffer
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Stdout, cmd.Stderr = &out, &errOut
	err := cmd.Run()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return finished{out.String(), errOut.String(), cmd.ProcessState.ExitCode()}
}

// wantNothingLeft wants the namespace of a run to be gone, which the run names as it begins.
func wantNothingLeft(t testing.TB, c *cluster, errOut string) {
	t.Helper()
	_, name, _ := strings.Cut(strings.TrimSpace(errOut), "in namespace ")
	name, _, _ = strings.Cut(name, "\n")
	if _, err := c.api.CoreV1().Namespaces().Get(t.Context(), name, metav1.GetOptions{}); name == "" || !apierrors.IsNotFound(err) {
		t.Errorf("namespace %q is left: %v", name, err)
	}
}

//e2e:rounds nftables
func TestConnectivityIsProvenByTwoRunsAtOnce(t *testing.T) {
	t.Parallel()
	c := open(t)
	c.agent(t)
	for _, run := range []string{"one", "another"} {
		t.Run(run, func(t *testing.T) {
			t.Parallel()
			got := finish(t, program, "connectivity", "test", "--nodes", "all", "-o", "json")
			wantAllProven(t, got)
			wantNothingLeft(t, c, got.errOut)
		})
	}
}

// wantAllProven wants each proof, in both families where it has one.
func wantAllProven(t testing.TB, got finished) {
	t.Helper()
	var report struct {
		OK     bool
		Proofs []struct{ Proof, Family string }
	}
	if err := json.Unmarshal([]byte(got.out), &report); err != nil {
		t.Fatalf("%v: %s%s", err, got.out, got.errOut)
	}
	var have []string
	for _, p := range report.Proofs {
		have = append(have, strings.TrimSpace(p.Proof+" "+p.Family))
	}
	slices.Sort(have)
	want := []string{
		"excluded-port IPv4", "excluded-port IPv6", "inbound IPv4", "inbound IPv6", "outbound IPv4", "outbound IPv6", "pods", "proxy IPv4", "proxy IPv6", "report",
	}
	if !report.OK || got.code != 0 || !slices.Equal(have, want) {
		t.Errorf("exit code %d: %s%s", got.code, got.out, got.errOut)
	}
}

//e2e:rounds nftables
func TestConnectivityTestCleansUpWhenInterrupted(t *testing.T) {
	t.Parallel()
	c := open(t)
	c.agent(t)
	said := &lockedBuffer{}
	cmd := exec.CommandContext(t.Context(), program, "connectivity", "test")
	cmd.Stderr = said
	must(t, cmd.Start())
	eventually(t, "the test's pods", func(ctx context.Context) error {
		_, name, ok := strings.Cut(strings.TrimSpace(said.String()), "in namespace ")
		if !ok {
			return errors.New("it has not begun")
		}
		list, err := c.api.CoreV1().Pods(name).List(ctx, metav1.ListOptions{})
		if err == nil && len(list.Items) == 0 {
			err = errors.New("none")
		}
		return err
	})
	must(t, cmd.Process.Signal(syscall.SIGINT))
	if err := cmd.Wait(); cmd.ProcessState.ExitCode() != 1 {
		t.Errorf("%v: %s", err, said)
	}
	wantNothingLeft(t, c, said.String())
}

// checked is the check's results by name, and its exit code.
func checked(t testing.TB) (levels map[string]string, got finished) {
	t.Helper()
	got = finish(t, program, "check", "-o", "json")
	var report struct {
		Results []struct{ Check, Level string }
	}
	if err := json.Unmarshal([]byte(got.out), &report); err != nil {
		t.Fatalf("%v: %s%s", err, got.out, got.errOut)
	}
	levels = map[string]string{}
	for _, r := range report.Results {
		levels[r.Check] = r.Level
	}
	return levels, got
}

//e2e:rounds nftables
func TestConnectivityIsProvenByHelmTest(t *testing.T) {
	t.Parallel()
	c := open(t)
	c.agent(t)
	if got := helmTest(t); got.code != 0 || !strings.Contains(got.out+got.errOut, "10 proofs, 0 failed") {
		t.Errorf("exit code %d: %s%s", got.code, got.out, got.errOut)
	}
	wantNoTestObjects(t, c, 0)
}

// The agent goes, by a nodeSelector that no node has, and comes back. A pod that has started meanwhile says so. Not parallel: others need it.
//
//e2e:rounds core nftables
func TestCheckAndHelmTestTellThatTheAgentIsAway(t *testing.T) {
	s := newSpace(t, nil)
	levels, got := checked(t)
	if got.code != 0 || levels["installed"] != "ok" || levels["agents-ready"] != "ok" || levels["nodes-without-agent"] != "ok" {
		t.Errorf("with the agent: exit code %d: %s", got.code, got.out)
	}
	comeBack := s.sendAgentAway(t)
	levels, got = checked(t)
	if got.code != 1 || levels["agents-ready"] != "fail" {
		t.Errorf("without the agent: exit code %d: %s", got.code, got.out)
	}
	s.start(t, meshPod("early", asked()))
	if got := helmTest(t); got.code == 0 || !strings.Contains(got.out+got.errOut, "reached the application of") {
		t.Errorf("helm test without the agent: exit code %d: %s%s", got.code, got.out, got.errOut)
	}
	comeBack()
	s.awaitLate(t, "early")
	if levels, _ := checked(t); levels["agents-ready"] != "ok" {
		t.Errorf("with the agent again: %v", levels)
	}
	wantNoTestObjects(t, s.cluster, 1)
}

// awaitLate waits until a pod says that it started before its rules, by at least a second, and has the event.
func (s *space) awaitLate(t *testing.T, pod string) {
	t.Helper()
	s.await(t, pod, func(pod *corev1.Pod) error {
		d, err := detailsOf(pod)
		if err != nil {
			return err
		}
		if late, err := time.ParseDuration(d.Late); err != nil || late < time.Second {
			return fmt.Errorf("its report says %q, error %w", d.Late, err)
		}
		return nil
	})
	s.awaitEvent(t, pod, "StartedBeforeRules", "its first container had been running for")
}

func helmTest(t testing.TB) finished {
	t.Helper()
	return finish(t, os.Getenv("HELM"), "test", agentName, "--namespace", agentName, "--timeout", "2m")
}

// wantNoTestObjects wants the pods of failed tests alone to be left, and removes them.
func wantNoTestObjects(t testing.TB, c *cluster, pods int) {
	t.Helper()
	o := metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=" + agentName + "-test"}
	namespaces, err := c.api.CoreV1().Namespaces().List(t.Context(), o)
	must(t, err)
	roles, err := c.api.RbacV1().ClusterRoles().List(t.Context(), o)
	must(t, err)
	accounts, err := c.api.CoreV1().ServiceAccounts(agentName).List(t.Context(), o)
	must(t, err)
	left, err := c.api.CoreV1().Pods(agentName).List(t.Context(), o)
	must(t, err)
	if n := len(namespaces.Items) + len(roles.Items) + len(accounts.Items); n > 0 || len(left.Items) != pods {
		t.Errorf("%d namespaces, roles and accounts of the test are left, and %d pods, want %d", n, len(left.Items), pods)
	}
	must(t, c.api.CoreV1().Pods(agentName).DeleteCollection(t.Context(), metav1.DeleteOptions{}, o))
}
