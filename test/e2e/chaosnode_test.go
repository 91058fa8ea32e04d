package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"istio-pod-network-controller/test/e2e/chaos"
)

// onNode does what is planned for a daemon, or for the agent.
func (r *chaosRun) onNode(ctx context.Context, a chaos.Action) error {
	switch {
	case a.Target == chaos.Agent:
		return r.onAgent(ctx, a)
	case a.Kind == chaos.Kill:
		return r.interrupt(ctx, a, []string{"kill", a.Target}, []string{"start", a.Target})
	case a.Kind == chaos.Stop:
		return r.interrupt(ctx, a, []string{"kill", "-s", "STOP", a.Target}, []string{"kill", "-s", "CONT", a.Target})
	default:
		return kc(ctx, "restart", a.Target)
	}
}

// interrupt undoes what it did, also when the test ends meanwhile.
func (r *chaosRun) interrupt(ctx context.Context, a chaos.Action, do, undo []string) error {
	if err := kc(ctx, do...); err != nil {
		return err
	}
	pause(ctx, a.Lasting)
	return kc(context.WithoutCancel(ctx), undo...)
}

// kc runs a command of the cluster kit.
func kc(ctx context.Context, args ...string) error {
	if out, err := exec.CommandContext(ctx, "kc", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("kc %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}

func (r *chaosRun) onAgent(ctx context.Context, a chaos.Action) error {
	if a.Kind == chaos.Roll {
		patch := fmt.Sprintf(`{"spec":{"template":{"metadata":{"annotations":{"rolled":"%d"}}}}}`, time.Now().UnixNano())
		_, err := r.api.AppsV1().DaemonSets(agentName).Patch(ctx, agentName, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{})
		return err
	}
	pod, pid, err := r.agentProcess(ctx)
	if err != nil {
		return err
	}
	if a.Kind == chaos.Stop {
		if err := signal(pid, syscall.SIGSTOP); err != nil {
			return err
		}
		pause(ctx, a.Lasting)
		return signal(pid, syscall.SIGCONT)
	}
	if err := signal(pid, syscall.SIGKILL); err != nil {
		return err
	}
	if pod.Status.ContainerStatuses[0].RestartCount == 0 {
		return nil
	}
	// The kubelet would let it wait longer from time to time, up to minutes. Another pod is started at once.
	now := int64(0)
	r.log("the agent's pod has been restarted before: another one")
	return r.api.CoreV1().Pods(agentName).Delete(ctx, pod.Name, metav1.DeleteOptions{GracePeriodSeconds: &now})
}

// agentProcess is the agent's newest pod whose container runs, and its process.
func (r *chaosRun) agentProcess(ctx context.Context) (*corev1.Pod, int, error) {
	list, err := r.api.CoreV1().Pods(agentName).List(ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=" + agentName})
	if err != nil {
		return nil, 0, err
	}
	err = fmt.Errorf("none of %d pods of the agent runs", len(list.Items))
	for i := range list.Items {
		pod := &list.Items[i]
		if isRunning(pod) != nil || pod.DeletionTimestamp != nil {
			continue
		}
		var pid int
		if pid, err = r.findContainerPID(ctx, pod, "agent"); err == nil {
			return pod, pid, nil
		}
	}
	return nil, 0, err
}

// signal sends one to a process that is an agent's.
func signal(pid int, s syscall.Signal) error {
	exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
	if err != nil {
		return fmt.Errorf("the agent's process: %w", err)
	}
	if !strings.HasSuffix(exe, "/"+agentName) {
		return fmt.Errorf("process %d is %s, no agent", pid, exe)
	}
	return syscall.Kill(pid, s)
}

// startDead starts daemons that have ended without anybody's doing, and says so.
func (r *chaosRun) startDead(ctx context.Context) error {
	out, err := exec.CommandContext(ctx, "kc", "status", "-o", "json").Output()
	var status struct{ Daemons map[string]bool }
	if err := json.Unmarshal(out, &status); err != nil {
		return fmt.Errorf("read kc's answer %q: %w", out, err)
	}
	if err == nil {
		return nil
	}
	for name, runs := range status.Daemons {
		if !runs {
			r.log("%s has ended by itself: started again", name)
			if err := kc(ctx, "start", name); err != nil {
				return err
			}
		}
	}
	return nil
}
