package connectivity

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"

	"istio-pod-network-controller/internal/intent"
	"istio-pod-network-controller/internal/printable"
)

// Limits of one run. For a node their sum, with the default of --wait, is below the default of --timeout.
const (
	startLimit    = 40 * time.Second // a pod is created -> it runs
	endLimit      = 15 * time.Second // the client has given up -> it has ended
	reportLimit   = 10 * time.Second // the report follows the rules from a queue
	accountLimit  = 10 * time.Second
	cleanLimit    = 30 * time.Second
	pollInterval  = 300 * time.Millisecond
	nodesAtOnce   = 20
	maxImageChars = 512
)

// Tester runs the test. It
//   - makes a namespace of its own, unless Namespace names one,
//   - starts a server pod and then a client pod on each node, several nodes at once,
//   - reads the client's proofs in its termination message, and the agents' reports on both pods,
//   - deletes what it has made, also if ctx has ended.
type Tester struct {
	Client    kubernetes.Interface
	Nodes     Nodes
	Namespace string
	Image     string
	Select    intent.Selection
	// Wait is how long a pod's rules may take after its start.
	Wait time.Duration
	// Keep leaves the pods for people to look at. They end by themselves after a quarter of an hour.
	Keep bool
	// Say gets what happens, in sentences.
	Say func(sentence string)
	// Interval is the time between two looks at a pod; 0 is the usual one.
	Interval time.Duration

	pods podMaker
}

// Validate returns an error that names every invalid field by its flag.
func (t *Tester) Validate() error {
	var errs []error
	if faults := validation.IsDNS1123Label(t.Namespace); t.Namespace != "" && len(faults) > 0 {
		errs = append(errs, fmt.Errorf("--namespace: value %q: %s", t.Namespace, strings.Join(faults, "; ")))
	}
	if bad := strings.IndexFunc(t.Image, func(r rune) bool { return r <= ' ' || r >= 0x7f }); bad >= 0 || len(t.Image) > maxImageChars {
		errs = append(errs, fmt.Errorf("--image: value %q: want the name of an image", t.Image))
	}
	switch t.Select {
	case intent.SelectAnnotation, intent.SelectInjected, intent.SelectEither:
	default:
		errs = append(errs, fmt.Errorf("--select: value %q: want annotation, injected or either", t.Select))
	}
	if t.Wait <= 0 || t.Wait > lifetime/2 {
		errs = append(errs, fmt.Errorf("--wait: value %q: want more than 0, and %s at most", t.Wait, lifetime/2))
	}
	return errors.Join(errs...)
}

// Run returns a line for each proof. With an error, the lines are about what was tested until then.
func (t *Tester) Run(ctx context.Context) (lines []Line, err error) {
	nodes, err := t.nodes(ctx)
	if err != nil {
		return nil, err
	}
	t.pods = podMaker{run: newRun(), namespace: t.Namespace, image: t.Image, injected: t.Select == intent.SelectInjected}
	own := t.Namespace == ""
	if own {
		ns := testNamespace(t.pods.run)
		t.pods.namespace = ns.Name
		if _, err := t.Client.CoreV1().Namespaces().Create(ctx, ns, metav1.CreateOptions{}); err != nil {
			if apierrors.IsForbidden(err) {
				return nil, fmt.Errorf("create namespace %s: %w: give an existing one by --namespace", ns.Name, err)
			}
			err = fmt.Errorf("create namespace %s: %w", ns.Name, err)
			if ctx.Err() != nil { // it may have been created
				err = errors.Join(err, t.clean(context.WithoutCancel(ctx), 0, own))
			}
			return nil, err
		}
	}
	defer func() {
		if t.Keep {
			t.Say(fmt.Sprintf("kept: the pods of namespace %s with the label %s=%s", t.pods.namespace, KeyRun, t.pods.run))
			return
		}
		if ctx.Err() != nil {
			t.Say(fmt.Sprintf("stopped: deleting what the test has made, for %s at most", cleanLimit))
		}
		err = errors.Join(err, t.clean(context.WithoutCancel(ctx), len(nodes), own))
	}()
	t.Say(fmt.Sprintf("testing %s in namespace %s", printable.Count(len(nodes), "node"), t.pods.namespace))
	return t.testNodes(ctx, nodes), context.Cause(ctx)
}

// newRun is a name that no other run has.
func newRun() string { return strings.ToLower(rand.Text()[:8]) }

func (t *Tester) testNodes(ctx context.Context, nodes []string) []Line {
	found := make([][]Line, len(nodes))
	var g errgroup.Group
	g.SetLimit(nodesAtOnce)
	for i, node := range nodes {
		g.Go(func() error { found[i] = t.testNode(ctx, i, node); return nil })
	}
	_ = g.Wait() // no function of it fails
	return slices.Concat(found...)
}

// testNode starts both pods on a node and returns what they prove.
func (t *Tester) testNode(ctx context.Context, index int, node string) []Line {
	server, why := t.start(ctx, t.pods.server(index, node))
	if why != "" {
		return []Line{line(node, KindPods, "", why)}
	}
	node = server.Spec.NodeName
	client, why := t.start(ctx, t.pods.client(index, node, server.Name, addresses(server), t.Wait))
	if why != "" {
		return []Line{line(node, KindPods, "", why)}
	}
	client, why = t.await(ctx, client.Name, t.Wait+endLimit, clientEnded)
	if why != "" {
		return []Line{line(node, KindPods, "", why)}
	}
	out := append([]Line{line(node, KindPods, "", "")}, lines(node, terminated(client).Message)...)
	if !Proven(out) { // without a server nothing is
		if _, why := t.await(ctx, server.Name, time.Second, beingDeleted); why != "" {
			return []Line{line(node, KindPods, "", why)}
		}
	}
	return append(out, t.reports(ctx, node, Proven(out), server.Name, client.Name))
}

// reports says whether the agent reports pods as programmed. Reports follow the rules from a queue; without rules nothing is waited for.
func (t *Tester) reports(ctx context.Context, node string, proven bool, pods ...string) Line {
	limit := reportLimit
	if !proven {
		limit = time.Second
	}
	for _, pod := range pods {
		if _, why := t.await(ctx, pod, limit, reported); why != "" {
			return line(node, KindReport, "", why)
		}
	}
	return line(node, KindReport, "", "")
}

// start creates a pod and waits until it runs; why says why it does not.
func (t *Tester) start(ctx context.Context, pod *corev1.Pod) (running *corev1.Pod, why string) {
	if err := t.create(ctx, pod); err != nil {
		return nil, fmt.Sprintf("create pod %s: %s", pod.Name, err)
	}
	running, why = t.await(ctx, pod.Name, startLimit, notRunning)
	if why != "" {
		why += t.lastEvent(ctx, pod.Name)
	}
	return running, why
}

// create creates a pod. In a new namespace that fails until the cluster has made its ServiceAccount.
func (t *Tester) create(ctx context.Context, pod *corev1.Pod) error {
	ctx, cancel := context.WithTimeout(ctx, accountLimit)
	defer cancel()
	var err error
	t.poll(ctx, func() bool {
		_, err = t.Client.CoreV1().Pods(pod.Namespace).Create(ctx, pod, metav1.CreateOptions{})
		return !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "serviceaccount \"default\" not found")
	})
	return err
}

// poll calls done until it returns true, or ctx ends. It reports whether done has.
func (t *Tester) poll(ctx context.Context, done func() bool) bool {
	return wait.PollUntilContextCancel(ctx, cmp.Or(t.Interval, pollInterval), true, func(context.Context) (bool, error) { return done(), nil }) == nil
}

// await looks at a pod until missing returns "", which says what the pod lacks. The last thing that it lacked is returned.
func (t *Tester) await(ctx context.Context, name string, limit time.Duration, missing func(*corev1.Pod) string) (*corev1.Pod, string) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	var found *corev1.Pod
	why := "not looked at"
	t.poll(ctx, func() bool {
		pod, err := t.Client.CoreV1().Pods(t.pods.namespace).Get(ctx, name, metav1.GetOptions{})
		switch {
		case err == nil:
			if why = missing(pod); why == "" {
				found = pod
			}
		case apierrors.IsNotFound(err):
			why = deletedPod + name
		case ctx.Err() == nil || apierrors.IsForbidden(err):
			why = fmt.Sprintf("get pod %s: %s", name, err)
		}
		return found != nil || apierrors.IsForbidden(err) || apierrors.IsNotFound(err)
	})
	return found, why
}

// clean deletes what the run has made, within cleanLimit, and waits until it is gone.
func (t *Tester) clean(ctx context.Context, nodes int, own bool) error {
	ctx, cancel := context.WithTimeout(ctx, cleanLimit)
	defer cancel()
	at := metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}
	var errs []error
	if own {
		errs = append(errs, t.removeNamespace(ctx)) // with all that is in it
		nodes = 0
	}
	for i := range nodes {
		for _, name := range []string{t.pods.server(i, "").Name, t.pods.client(i, "", "", nil, 0).Name} {
			if err := t.Client.CoreV1().Pods(t.pods.namespace).Delete(ctx, name, at); err != nil && !apierrors.IsNotFound(err) {
				errs = append(errs, err)
			}
		}
	}
	err, by := errors.Join(errs...), "kubectl delete namespace "+t.pods.namespace
	if !own {
		by = fmt.Sprintf("kubectl -n %s delete pods -l %s=%s", t.pods.namespace, KeyRun, t.pods.run)
	}
	if err != nil {
		return fmt.Errorf("clean up: %w: do it by hand: %s", err, by)
	}
	return nil
}

func (t *Tester) removeNamespace(ctx context.Context) error {
	if err := t.Client.CoreV1().Namespaces().Delete(ctx, t.pods.namespace, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	gone := t.poll(ctx, func() bool {
		_, err := t.Client.CoreV1().Namespaces().Get(ctx, t.pods.namespace, metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})
	if !gone {
		t.Say(fmt.Sprintf("namespace %s is still being deleted", t.pods.namespace))
	}
	return nil
}
