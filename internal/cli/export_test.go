package cli

// HelpExamples are those of the help, by command.
func HelpExamples() map[string][]string { return examplesTable }
