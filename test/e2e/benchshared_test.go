package e2e

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

const (
	// sharedPods are how many pods share the proxy whose memory is measured, ownPods how many have one each. lonelyPods come in alone, the others
	// of the shared proxy one right behind the other: its configuration changes once a second at most.
	sharedPods, ownPods, lonelyPods = 50, 10, 10
	// askers ask at the same time, each round so many milliseconds.
	askers, askRounds, askMillis = 8, 3, 4000
)

// measureShared compares a proxy that the pods of the node share with one a pod.
func measureShared(b *testing.B) []row {
	b.Helper()
	own, sharing, alike := newManaged(b), few(sharedPods), few(ownPods)
	own.annotateSelf(b, map[string]any{keySidecar: nil})
	shared := managed{own.space, sharedLoad, own.objects}
	shared.createShared(b)
	for i := range sharing + alike {
		own.create(b, newPod(fmt.Sprintf("pod-%d", i), nil, appContainer()))
	}
	own.awaitAll(b, sharing+alike, isRunning)
	pods := make([]*corev1.Pod, 0, sharing+alike)
	for i := range sharing + alike {
		pods = append(pods, own.awaitAnswer(b, fmt.Sprintf("pod-%d", i)))
	}
	var alone, inTurn, withOwn []float64
	for i, pod := range pods[alike:] {
		if i < few(lonelyPods) {
			<-time.After(2 * time.Second)
			alone = append(alone, shared.attach(b, pod))
		} else {
			inTurn = append(inTurn, shared.attach(b, pod))
		}
	}
	for _, pod := range pods[:alike] {
		withOwn = append(withOwn, own.attach(b, pod))
	}
	const attach = "from the pod's annotation to the first answer through the proxy, shared against own"
	rows := []row{
		newRow(attach, "ms p50", quantile(alone, 50), quantile(withOwn, 50), "< 1500"),
		newRow(attach, "ms max", quantile(alone, 100), quantile(withOwn, 100), "reported"),
		newRow(attach+", one pod right behind the other", "ms p50", quantile(inTurn, 50), quantile(withOwn, 50), "< 1500"),
		newRow(fmt.Sprintf("memory of the proxies a pod (PSS), %d that share one against %d with their own", sharing, alike), "MiB",
			shared.sharedMemory(b)/float64(sharing), own.ownMemory(b, pods[:alike])/float64(alike), "reported"),
	}
	// Conntrack knows no old connection of these two: a port of one would be refused to the client for minutes.
	asked := [2]*corev1.Pod{shared.startAsking(b, "asked-shared"), own.startAsking(b, "asked-own")}
	for _, kept := range []bool{true, false} {
		name := "requests to a pod over new connections, shared against own"
		if kept {
			name = "requests to a pod over kept connections, shared against own"
		}
		var rates [2][]float64
		for range few(askRounds) { // in turn: the machine is not always as busy
			rates[0] = append(rates[0], askMany(b, asked[0], kept))
			rates[1] = append(rates[1], askMany(b, asked[1], kept))
		}
		rows = append(rows, newRow(name, "1/s p50", quantile(rates[0], 50), quantile(rates[1], 50), "reported"))
	}
	return rows
}

// attach has a running pod choose the profile, and returns the milliseconds until a connection to it passes the proxy.
func (m managed) attach(b *testing.B, pod *corev1.Pod) float64 {
	b.Helper()
	f := families()[0]
	began := time.Now()
	m.annotate(b, pod.Name, map[string]any{keySidecar: m.profile})
	for {
		var a answer
		if err := request(b.Context(), at(pod, f, appPort), "/", &a); err == nil && a.peer() == f.passthrough {
			return milliseconds(time.Since(began))
		}
		if time.Since(began) > patience {
			b.Fatalf("no connection to %s passes the proxy within %s", pod.Name, patience)
		}
		<-time.After(5 * time.Millisecond)
	}
}

// startAsking starts a pod that has chosen the profile from the first.
func (m managed) startAsking(b *testing.B, name string) *corev1.Pod {
	b.Helper()
	pod := plainPod(name)
	pod.Annotations = map[string]string{keySidecar: m.profile}
	return m.startManaged(b, pod)
}

// sharedMemory is what the processes of the node's shared proxy have, once the old ones have finished.
func (m managed) sharedMemory(b *testing.B) (mib float64) {
	b.Helper()
	first := m.containerPID(b, m.sharedPod(b), "proxy")
	eventually(b, "the end of the old workers", func(context.Context) error {
		children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", first, first))
		workers := strings.Fields(string(children))
		if err != nil || len(workers) != 1 {
			return fmt.Errorf("there are %d workers, error %w", len(workers), err)
		}
		worker, err := strconv.Atoi(workers[0])
		must(b, err)
		mib = memoryOf(b, first) + memoryOf(b, worker)
		return nil
	})
	return mib
}

func (m managed) ownMemory(b *testing.B, pods []*corev1.Pod) (mib float64) {
	b.Helper()
	for _, pod := range pods {
		mib += memoryOf(b, m.containerPID(b, pod, managedProxy))
	}
	return mib
}

// memoryOf is a process's share of the memory that it has.
func memoryOf(b *testing.B, pid int) (mib float64) {
	b.Helper()
	file, err := os.Open(filepath.Join("/proc", strconv.Itoa(pid), "smaps_rollup"))
	must(b, err)
	defer file.Close() //nolint:errcheck // it was read
	for lines := bufio.NewScanner(file); lines.Scan(); {
		if words := strings.Fields(lines.Text()); words[0] == "Pss:" {
			kib, err := strconv.ParseFloat(words[1], 64)
			must(b, err)
			return kib / 1024
		}
	}
	must(b, errors.New("the kernel does not tell the process's share"))
	return 0
}

// askMany returns how many requests a second a pod answers.
func askMany(b *testing.B, pod *corev1.Pod, kept bool) float64 {
	b.Helper()
	url := "http://" + at(pod, families()[0], appPort).String() + "/"
	transport := &http.Transport{DisableKeepAlives: !kept, MaxIdleConnsPerHost: askers}
	defer transport.CloseIdleConnections()
	client := http.Client{Transport: transport}
	ctx, cancel := context.WithTimeout(b.Context(), time.Duration(few(askMillis))*time.Millisecond)
	defer cancel()
	var answered atomic.Int64
	var asking sync.WaitGroup
	began := time.Now()
	for range askers {
		asking.Go(func() {
			for ctx.Err() == nil {
				response, err := client.Get(url)
				if err != nil {
					b.Errorf("%s: %v", pod.Name, err)
					return
				}
				_, err = io.Copy(io.Discard, response.Body)
				_ = response.Body.Close()
				if err == nil {
					answered.Add(1)
				}
			}
		})
	}
	asking.Wait()
	return float64(answered.Load()) / time.Since(began).Seconds()
}
