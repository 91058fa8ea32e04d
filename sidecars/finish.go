package sidecars

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/internal/sidecar"
	"istio-pod-network-controller/sidecars/home"
)

const (
	// finishWait is how long proxies have that are told to finish. Until then the runtime makes no other call over NRI.
	finishWait = 250 * time.Millisecond
	// killWait bounds the end of a proxy that has not finished.
	killWait = 100 * time.Millisecond
)

// isOver reports whether a sandbox's application has ended for good, by the runtime's list. A container that has ended just now may be listed as
// running: if ended is Exited it counts, not the list. Without an ID it is none; with the ID of no container of the application the answer is no.
func isOver(ctx context.Context, runtime Runtime, cluster Cluster, s podnet.Sandbox, ended sidecar.Application) (bool, error) {
	all, err := runtime.Applications(ctx, s.ID)
	if err != nil {
		return false, err
	}
	its := ended.ID == ""
	for i, a := range all {
		if a.ID == ended.ID {
			its = true
			if ended.State == sidecar.Exited {
				all[i], a = ended, ended
			}
		}
		if a.State != sidecar.Exited {
			return false, nil
		}
	}
	if !its {
		return false, nil // one of ours
	}
	choice, err := cluster.Choice(ctx, s)
	if err == nil && choice.Ending || errors.Is(err, podnet.ErrNoPod) {
		return true, nil
	}
	pod, err := cluster.CurrentPod(ctx, s)
	if err != nil {
		return false, fmt.Errorf("read pod: %w", err)
	}
	return staysEnded(pod, all), nil
}

// staysEnded reports whether none of a pod's containers will be started again, when all that were have ended. A container that was not
// started yet will be.
func staysEnded(pod *corev1.Pod, ended []sidecar.Application) bool {
	if pod.DeletionTimestamp != nil {
		return true
	}
	last := map[string]sidecar.Application{}
	for _, a := range ended {
		if before, ok := last[a.Name]; !ok || a.Attempt >= before.Attempt {
			last[a.Name] = a
		}
	}
	for _, c := range pod.Spec.Containers {
		a, started := last[c.Name]
		policy := pod.Spec.RestartPolicy
		if c.RestartPolicy != nil {
			policy = corev1.RestartPolicy(*c.RestartPolicy)
		}
		done := policy == corev1.RestartPolicyNever || policy == corev1.RestartPolicyOnFailure && a.ExitCode == 0
		if !started || !done || len(c.RestartPolicyRules) > 0 {
			return false
		}
	}
	return true
}

// finishWithApplication tells the proxies of a pod that ends to finish once its application has ended, for runtimes that do not say so, for an agent
// that was told so and ended, and for a proxy that was being made then. A proxy that ignores the signal of the runtime, as the first process of its
// namespace may, would hold up the end of its sandbox.
func finishWithApplication(ctx context.Context, runtime Runtime, o observed) error {
	if over := o.choice.Ending || o.notes.Finished(time.Now()); !over || !slices.ContainsFunc(o.containers, isRunning) {
		return nil
	}
	all, err := runtime.Applications(ctx, o.key.Sandbox)
	if err != nil || slices.ContainsFunc(all, func(a sidecar.Application) bool { return a.State != sidecar.Exited }) {
		return err
	}
	return finish(ctx, runtime, o.key, o.home)
}

func isRunning(c sidecar.Container) bool { return c.State == sidecar.Running }

// finish tells a sandbox's proxies to finish, and kills what still runs after finishWait: containerd ends the sandbox at once then, CRI-O would
// give a proxy with an open connection two minutes. It is noted first, so that none is started in their place. An agent that ends meanwhile ends after
// it.
func finish(ctx context.Context, runtime Runtime, key podnet.Key, h home.Home) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), finishWait)
	defer cancel()
	all, err := runtime.List(ctx, key.PodUID)
	if err != nil {
		return err
	}
	switch err := h.NoteFinished(); {
	case errors.Is(err, fs.ErrNotExist) && len(all) == 0: // it had no proxy yet, nor a home
		return nil
	case err != nil:
		return err
	}
	notes := h.Notes()
	var ending sync.WaitGroup
	ends := make([]error, len(all))
	for i, c := range all {
		if c.Sandbox != key.Sandbox || c.State != sidecar.Running {
			continue
		}
		if !notes.Has(home.Draining, c.Epoch) { // it was told before
			if ends[i] = tell(ctx, runtime, c); ends[i] != nil {
				continue
			}
			log.FromContext(ctx).Info("proxy told to finish with its application", "sandbox", key.Sandbox, "epoch", c.Epoch)
		}
		ending.Go(func() {
			if unlessGone(runtime.Wait(ctx, c.ID)) != nil {
				<-ctx.Done() // whatever the error is, the proxy has its time
				ends[i] = kill(ctx, runtime, c)
			}
		})
	}
	ending.Wait()
	return errors.Join(ends...)
}

// tell sends a proxy its stop signal. A proxy that is gone is no error.
func tell(ctx context.Context, runtime Runtime, c sidecar.Container) error {
	signal := unix.SIGTERM
	if c.StopSignal != "" {
		signal = unix.SignalNum("SIG" + c.StopSignal)
	}
	return unlessGone(runtime.Signal(ctx, c.ID, signal))
}

// kill has a time of its own: that of the proxy is over.
func kill(ctx context.Context, runtime Runtime, c sidecar.Container) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), killWait)
	defer cancel()
	return unlessGone(runtime.Signal(ctx, c.ID, unix.SIGKILL))
}

func unlessGone(err error) error {
	if errors.Is(err, sidecar.ErrGone) {
		return nil
	}
	return err
}

// finishLate tells a sandbox's proxies to finish if its application has ended lately, while another agent worked, and that one has not told them.
func finishLate(ctx context.Context, runtime Runtime, key podnet.Key, h home.Home, at time.Time) error {
	if time.Since(at) >= home.FinishedFor || h.Notes().Finished(time.Now()) {
		return nil
	}
	err := finish(ctx, runtime, key, h)
	if errors.Is(err, os.ErrNotExist) { // it has never had a proxy
		return nil
	}
	return err
}
