// Command release packs what hack/release.sh has built. Equal input gives equal bytes: every time is the commit's, the order is by path, and all
// belongs to root. Another compressor than Go's own would make them depend on the machine.
//
//	release -time SECONDS archive FILE DIRECTORY
//	release -time SECONDS -name NAME -version VERSION -revision COMMIT image FILE PROGRAMS
//	release -time SECONDS -name NAME -version VERSION -revision COMMIT chart FILE ARCHIVE
package main

import (
	"flag"
	"fmt"
	"os"
	"time"
)

func main() {
	var r release
	seconds := flag.Int64("time", 0, "the commit's time, in seconds since the epoch (SOURCE_DATE_EPOCH)")
	flag.StringVar(&r.name, "name", "", "the product's name, which is that of its main program")
	flag.StringVar(&r.version, "version", "", "the release's version")
	flag.StringVar(&r.revision, "revision", "", "the commit")
	flag.Parse()
	r.at = time.Unix(*seconds, 0)
	var err error
	switch command := flag.Arg(0); {
	case *seconds <= 0 || flag.NArg() != 3:
		err = fmt.Errorf("want -time, a command, a file and what goes into it: %q", os.Args[1:])
	case command == "archive":
		err = archive(flag.Arg(1), flag.Arg(2), r.at)
	case command == "image":
		err = r.writeImage(flag.Arg(1), flag.Arg(2))
	case command == "chart":
		err = r.writeChart(flag.Arg(1), flag.Arg(2))
	default:
		err = fmt.Errorf("no command %q", command)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}
