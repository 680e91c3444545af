package page

import "time"

// Now is who holds which quota, and who waits.
type Now struct {
	Flavors []Quota
	Cohorts []Cohort
	// Preemptions are being made.
	Preemptions []Preemption
	// Planned is when expected starts were computed; nil if they aren't known. Incomplete says that not all are.
	Planned    *time.Time
	Incomplete bool
}

// Cohort is ClusterQueues that share quota. Its name is "" for a ClusterQueue that shares with none.
type Cohort struct {
	Name   string
	Queues []Queue
}

// Queue is a ClusterQueue.
type Queue struct {
	Name   string
	Quotas []Quota
	// Waiting are the first that wait, in Kueue's order, and More how many there are besides.
	Waiting []Waiting
	More    int
}

// Quota is a resource of a flavor.
type Quota struct {
	Flavor, Resource string
	// Nominal, Used, Borrowed and Waiting are as kubectl signalbox top has them.
	Nominal, Used, Borrowed, Waiting string
	// Others are further amounts, such as "2 lent".
	Others []string
	Bar    Bar
}

// Waiting is one that waits.
type Waiting struct {
	Place           int
	Namespace, Name string
	// Href is "" for one that is no TrainJob.
	Href     string
	Priority int32
	Since    time.Time
	Cause    string
	// Start is when it is expected to start; nil if that isn't known.
	Start *time.Time
}

// Preemption is a Workload that gives its quota back.
type Preemption struct{ Namespace, Name, By, Why string }

func (Now) template() string { return "now.html" }

// Jobs is a list of TrainJobs, as kubectl signalbox list has it.
type Jobs struct {
	Rows []Job
	// Search, State and Namespace are what is looked for.
	Search, State, Namespace string
	States                   []string
	// Next is the path of the next part; "" if this is the last.
	Next  string
	Total int
}

// Job is a row of the list.
type Job struct {
	Namespace, Name, State, Queue, Place, Flavor, Nodes, Cause string
	Priority                                                   int32
	Created                                                    time.Time
}

func (Jobs) template() string { return "jobs.html" }

// Line is the timelines of all flavors.
type Line struct {
	Axis
	Timelines []Timeline
	// Back and Ahead are the hours that are shown.
	Back, Ahead int
	Choices     []Choice
	Incomplete  bool
	// Known is false if what will run isn't known; Why says why.
	Known bool
	Why   string
}

// Choice is a horizon to choose.
type Choice struct {
	Text, Href string
	Chosen     bool
}

func (Line) template() string { return "timeline.html" }

// TrainJob is what is known of one.
type TrainJob struct {
	Namespace, Name, State string
	Cause
	Standing
	Details
	Actions []Action
}

// Cause is why it is in its state.
type Cause struct {
	Code, Reason, Text string
	Since              *time.Time
	Do                 []string
}

// Standing is where it stands in its queue.
type Standing struct {
	Queue, ClusterQueue string
	Priority            int32
	Place, Waiting      int
	Start               *time.Time
}

// Details are the tables of a TrainJob.
type Details struct {
	After    []After
	Flavors  []Short
	Ahead    []Waiting
	Clusters []Elsewhere
	History  []Moment
	Pods     []Pod
	Progress *int32
	Curves   []Curve
}

// After is a TrainJob that it runs after.
type After struct {
	Name, Href, When, State string
	Depth                   int
}

// Short is what it lacks of a flavor.
type Short struct{ Flavor, Resource, Needed, Free, Short, Nominal, Most, Unsuitable string }

// Elsewhere is what it is in another cluster. Unread is why its pods there aren't known.
type Elsewhere struct {
	Cluster, State, Code, Text, Unread string
	Pods                               []Pod
}

// Moment is something that has happened.
type Moment struct {
	Time         time.Time
	Source, Text string
}

// Pod is one of its pods.
type Pod struct {
	Rank, Name, Phase, Node, Rack string
	Restarts                      int32
	// Logs is the path of its log; "" if it has none.
	Logs string
}

// Action is what the user may do.
type Action struct{ Verb, Text, Href string }

func (TrainJob) template() string { return "trainjob.html" }

// Confirm asks whether to do something.
type Confirm struct {
	Namespace, Name, Verb string
	// Consequences are what will happen.
	Consequences []string
}

func (Confirm) template() string { return "confirm.html" }

// Logs is the end of a log.
type Logs struct {
	Namespace, Name, Rank string
	Ranks                 []string
	Containers            []Log
	// Lines is how many lines of each are shown at most.
	Lines int
}

// Log is the end of a container's log.
type Log struct{ Container, Text string }

func (Logs) template() string { return "logs.html" }

// WhatIf is a form, and what would become of the TrainJob.
type WhatIf struct {
	Form
	// Names, Queues and Priorities are there to choose.
	Names, Queues, Priorities []string
	Problem                   string
	Answers                   []Answer
	Changed                   string // the manifest with the changes
}

// Form is what is asked.
type Form struct{ Name, Manifest, Nodes, Minimum, Queue, Priority string }

// Answer is what becomes of a TrainJob.
type Answer struct {
	Namespace, Name, Verdict, Text, Message string
	Ahead                                   []string
	Start                                   *Start
	Changes                                 []string
}

// Start is when it is expected to start.
type Start struct {
	Earliest, Likely, Latest time.Time
	Sure                     string
}

func (WhatIf) template() string { return "whatif.html" }

// Nodes are the nodes by their topology.
type Nodes struct {
	Groups  []Group
	Avoided []Avoided
}

// Group is nodes that are together: a flavor, a block, a rack.
type Group struct {
	Name  string
	Depth int
	Nodes []Node
	// GPUs and Free are of all of its nodes.
	Total, Free string
}

// Node is a node with its GPUs.
type Node struct {
	Name, State string
	Bar         Bar
	Total       string
}

// Avoided is a node that TrainJobs keep off.
type Avoided struct {
	Node, Reason, Message, Pod string
	Namespaces, TrainJobs      int
	Time                       time.Time
	Tainted                    bool
}

func (Nodes) template() string { return "nodes.html" }

// Teams is who used what.
type Teams struct {
	Columns []string
	Rows    []TeamRow
	Since   string
	By      []string
	Choices []Choice
	Export  string
	// Problem says why there is nothing.
	Problem string
}

// TeamRow is what was used: cells by the columns, then useful, lost, idle, unknown and total in hours.
type TeamRow struct {
	Cells []string
	Bar   Bar
}

func (Teams) template() string { return "teams.html" }

// Problem is an error.
type Problem struct{ Text string }

func (Problem) template() string { return "problem.html" }
