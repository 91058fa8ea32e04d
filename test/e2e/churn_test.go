package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// deleteWithin deletes a pod with so much grace; one that is gone already is no error.
func (s *space) deleteWithin(ctx context.Context, t *testing.T, name string, graceSeconds int64) {
	t.Helper()
	err := s.pods().Delete(ctx, name, metav1.DeleteOptions{GracePeriodSeconds: &graceSeconds})
	if err != nil && !apierrors.IsNotFound(err) && ctx.Err() == nil {
		t.Errorf("delete pod %s: %v", name, err)
	}
}

// awaitTidyNode waits until every network namespace on the node, as the node and as the agent see it, belongs to a sandbox.
func (s *space) awaitTidyNode(t testing.TB, agent *corev1.Pod) {
	t.Helper()
	pid := s.containerPID(t, agent, "agent")
	eventually(t, "a tidy node", func(ctx context.Context) error {
		list, err := s.runtime.ListPodSandbox(ctx, &criv1.ListPodSandboxRequest{})
		if err != nil {
			return err
		}
		used := map[string]bool{}
		for _, item := range list.Items {
			status, err := s.runtime.PodSandboxStatus(ctx, &criv1.PodSandboxStatusRequest{PodSandboxId: item.Id, Verbose: true})
			if err != nil {
				return err
			}
			sandbox, err := readSandbox(item.Id, status.Info["info"])
			if err != nil {
				return err
			}
			used[filepath.Base(sandbox.NetNS)] = true
		}
		return errors.Join(s.strayFiles(used), strayMounts(pid, used))
	})
}

func (s *space) strayFiles(used map[string]bool) error {
	files, err := os.ReadDir(filepath.Join(s.node.NodeRoot, "run/netns"))
	if err != nil {
		return err
	}
	for _, f := range files {
		if !used[f.Name()] {
			return fmt.Errorf("network namespace %s belongs to no sandbox", f.Name())
		}
	}
	return nil
}

// strayMounts looks at what a process has mounted: a mount that only it holds keeps a deleted pod's namespace alive.
func strayMounts(pid int, used map[string]bool) error {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", pid))
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if name := filepath.Base(fields[4]); strings.HasPrefix(name, "cni-") && !used[name] {
			return fmt.Errorf("process %d has a mount of network namespace %s, which belongs to no sandbox", pid, name)
		}
	}
	return nil
}

// nsfs is the kernel's file system of namespaces (linux/magic.h). Paths do not tell: a namespace whose path is gone is "/".
const nsfs = 0x6e736673

// openNamespaces counts the namespaces that the agent holds open.
func (s *space) openNamespaces(t *testing.T, agent *corev1.Pod) int {
	t.Helper()
	dir := fmt.Sprintf("/proc/%d/fd", s.containerPID(t, agent, "agent"))
	fds, err := os.ReadDir(dir)
	must(t, err)
	n := 0
	for _, fd := range fds {
		var fs syscall.Statfs_t
		if syscall.Statfs(filepath.Join(dir, fd.Name()), &fs) == nil && fs.Type == nsfs {
			n++
		}
	}
	return n
}
