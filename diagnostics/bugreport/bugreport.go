// Package bugreport collects what an issue needs into one archive: no secrets, no values of environment variables, no tokens. What could not be read
// is listed in it.
package bugreport

import (
	"archive/tar"
	"cmp"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"istio-pod-network-controller/diagnostics/cluster"
	"istio-pod-network-controller/internal/agentstatus"
)

// Bounds of what is collected.
const (
	maxAgents  = 50
	maxEvents  = 1000
	maxObjects = 1000 // of each of the proxy manager's kinds
	logLines   = 2000
	logBytes   = 1 << 20
)

// Report collects, in this order:
//
//   - what the caller has computed: versions, the results of check and status;
//   - the agents' pods, DaemonSets and ConfigMaps;
//   - events that the agents have made;
//   - the proxy manager's objects;
//   - the last lines of the agents' logs, and of the previous containers' where some have ended: nodes that do not answer may take the rest of the time.
//
// A part that cannot be read costs nothing but a line of NotRead.
type Report struct {
	Client kubernetes.Interface
	// AgentNamespace is where agents are looked for; empty: everywhere.
	AgentNamespace string
	// Objects returns a page of one of the proxy manager's kinds, as JSON.
	Objects func(ctx context.Context, resource string, o metav1.ListOptions) ([]byte, error)

	files   []file
	NotRead []string
}

type file struct {
	name string
	data []byte
}

// Add adds a file for what fill returns, or a line of NotRead.
func (r *Report) Add(name string, fill func() (any, error)) {
	value, err := fill()
	if err != nil {
		r.missing(name, err)
		return
	}
	data, err := redactObject(value)
	if err != nil {
		r.missing(name, err)
		return
	}
	r.files = append(r.files, file{name, data})
}

func (r *Report) missing(name string, err error) {
	r.NotRead = append(r.NotRead, name+": "+strings.Join(strings.Fields(string(redactText([]byte(err.Error())))), " "))
}

// Collect reads the cluster.
func (r *Report) Collect(ctx context.Context) {
	agents, err := cluster.Agents(ctx, r.Client, r.AgentNamespace, "")
	if err != nil {
		r.missing("agents", err)
	}
	slices.SortStableFunc(agents, func(a, b cluster.Agent) int { // an issue is about agents in trouble
		return cmp.Or(strings.Compare(strconv.FormatBool(a.Ready), strconv.FormatBool(b.Ready)), cmp.Compare(b.Crashes.Restarts, a.Crashes.Restarts))
	})
	if len(agents) > maxAgents {
		r.missing("agents", fmt.Errorf("%d of %d are here", maxAgents, len(agents)))
		agents = agents[:maxAgents]
	}
	namespaces := map[string]bool{}
	var pods []*corev1.Pod
	for _, a := range agents {
		namespaces[a.Namespace] = true
		pods = append(pods, a.Pod)
	}
	if len(pods) > 0 {
		r.Add("agents.json", func() (any, error) { return pods, nil })
	}
	charts := metav1.ListOptions{LabelSelector: agentstatus.Label}
	for namespace := range namespaces {
		r.Add("daemonsets-"+namespace+".json", func() (any, error) { return r.Client.AppsV1().DaemonSets(namespace).List(ctx, charts) })
		r.Add("configmaps-"+namespace+".json", func() (any, error) { return r.Client.CoreV1().ConfigMaps(namespace).List(ctx, charts) })
		events := "events-" + namespace + ".json"
		r.Add(events, func() (any, error) { return r.events(ctx, events, namespace, "") })
	}
	r.Add("events-of-pods.json", func() (any, error) {
		return r.events(ctx, "events-of-pods.json", metav1.NamespaceAll, "reportingComponent="+agentstatus.Name)
	})
	for _, resource := range []string{"proxyprofiles", "managedproxies"} {
		r.Add(resource+".json", func() (any, error) {
			return r.objects(ctx, resource)
		})
	}
	for _, a := range agents {
		r.logs(ctx, a)
	}
}

// logs adds the last lines of an agent's log, and of its previous container.
func (r *Report) logs(ctx context.Context, a cluster.Agent) {
	lines, most := int64(logLines), int64(logBytes)
	ended := slices.ContainsFunc(a.Pod.Status.ContainerStatuses, func(s corev1.ContainerStatus) bool {
		return s.Name == agentstatus.Container && s.RestartCount > 0
	})
	for _, previous := range []bool{false, true} {
		if previous && !ended {
			continue
		}
		name := "logs/" + a.Namespace + "-" + a.Name + map[bool]string{false: ".log", true: "-previous.log"}[previous]
		text, err := r.Client.CoreV1().Pods(a.Namespace).GetLogs(a.Name, &corev1.PodLogOptions{
			Container: agentstatus.Container, Previous: previous, TailLines: &lines, LimitBytes: &most, Timestamps: true,
		}).DoRaw(ctx)
		if err != nil {
			r.missing(name, err)
			continue
		}
		r.files = append(r.files, file{name, redactText(text)})
	}
}

// objects reads the first of one of the proxy manager's kinds. Of a cluster that has more, some show what an issue is about.
func (r *Report) objects(ctx context.Context, resource string) (any, error) {
	var page struct {
		Metadata metav1.ListMeta   `json:"metadata"`
		Items    []json.RawMessage `json:"items"`
	}
	raw, err := r.Objects(ctx, resource, metav1.ListOptions{Limit: maxObjects})
	if err == nil {
		err = json.Unmarshal(raw, &page)
	}
	if page.Metadata.Continue != "" {
		r.more(resource+".json", len(page.Items))
	}
	return page, err
}

// more says that a report leaves out what could be read.
func (r *Report) more(name string, has int) {
	r.missing(name, fmt.Errorf("the first %d are here, and there are more", has))
}

func (r *Report) events(ctx context.Context, name, namespace, fields string) ([]corev1.Event, error) {
	list, err := r.Client.CoreV1().Events(namespace).List(ctx, metav1.ListOptions{FieldSelector: fields, Limit: maxEvents})
	if err != nil {
		return nil, err
	}
	if list.Continue != "" {
		r.more(name, len(list.Items))
	}
	return list.Items, nil
}

// Write writes the archive, a tar file by gzip, and returns how many files it has.
func (r *Report) Write(to io.Writer, now time.Time) (n int, err error) {
	zipped := gzip.NewWriter(to)
	archive := tar.NewWriter(zipped)
	files := append([]file{{"README.txt", []byte(r.readme())}}, r.files...)
	for _, f := range files {
		err := archive.WriteHeader(&tar.Header{Name: "bugreport/" + f.name, Mode: 0o600, Size: int64(len(f.data)), ModTime: now.UTC().Truncate(time.Second)})
		if err == nil {
			_, err = archive.Write(f.data)
		}
		if err != nil {
			return 0, fmt.Errorf("write %s: %w", f.name, err)
		}
	}
	return len(files), errors.Join(archive.Close(), zipped.Close())
}

func (r *Report) readme() string {
	var b strings.Builder
	b.WriteString("What an issue about istio-pod-network-controller needs. Read it before you give it away: values of environment variables, tokens,\n" +
		"keys and passwords were taken out where they were recognised; names of pods, nodes and images and addresses are in it.\n\nNot read:\n")
	for _, line := range r.NotRead {
		b.WriteString("  " + line + "\n")
	}
	if len(r.NotRead) == 0 {
		b.WriteString("  nothing\n")
	}
	return b.String()
}
