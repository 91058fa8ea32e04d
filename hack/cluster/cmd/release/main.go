// Command release packs what hack/release.sh has built.
package main

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"time"

	"istio-pod-network-controller/hack/cluster/internal/release"
)

func main() {
	var r release.Release
	var seconds int64
	var documents string
	flag.StringVar(&r.Name, "name", "", "the product's name")
	flag.StringVar(&r.Version, "version", "", "the release's version")
	flag.StringVar(&r.Revision, "revision", "", "the commit")
	flag.Int64Var(&seconds, "time", 0, "the commit's time, in seconds since the epoch (SOURCE_DATE_EPOCH)")
	flag.StringVar(&r.Programs, "programs", "", "directory with the programs, in a directory for each architecture")
	flag.StringVar(&r.Chart, "chart", "", "the chart as helm package makes it")
	flag.StringVar(&r.SBOMs, "sboms", "", "directory with SBOMs as cyclonedx-gomod writes them")
	flag.StringVar(&r.Plugins, "plugins", "", "directory with the plugin of kubectl, in a directory OS-ARCHITECTURE for each platform")
	flag.StringVar(&r.Krew, "krew", "", "the template of krew's manifest")
	flag.StringVar(&r.URL, "url", "", "where the release's files are published")
	flag.StringVar(&r.Source, "source", "", "the repository's address")
	flag.StringVar(&r.Go, "go", "", "the version of Go")
	flag.StringVar(&documents, "documents", "", "files for the archives, separated by commas")
	flag.StringVar(&r.Output, "output", "", "directory for the release")
	flag.Parse()
	if r.Name == "" || r.Version == "" || r.Programs == "" || r.Output == "" || seconds <= 0 || flag.NArg() > 0 {
		fmt.Fprintln(os.Stderr, "usage: release -name NAME -version VERSION -revision COMMIT -time SECONDS -programs DIR -output DIR [-chart FILE] [-sboms DIR] [-plugins DIR -krew FILE -url URL] [-source URL] [-go VERSION] [-documents FILES]")
		os.Exit(2)
	}
	r.Time, r.Documents = time.Unix(seconds, 0), strings.FieldsFunc(documents, func(c rune) bool { return c == ',' })
	if err := r.Pack(); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}
