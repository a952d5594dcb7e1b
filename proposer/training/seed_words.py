# ruff: noqa: E501 - lists of words read better unbroken
"""Words and sentence frames that seed prompts are made of. Written for this project; no evaluation prompt was consulted
for content, and `proposer.training.disjoint` checks that none is repeated."""

from __future__ import annotations

TOPICS = (
    "the water cycle", "how bridges carry load", "bread baking", "the history of the printing press", "coral reefs",
    "electric bicycles", "why the sky is blue", "compound interest", "the French Revolution", "volcanoes", "photosynthesis",
    "the Silk Road", "solar panels", "how vaccines work", "chess openings", "gardening in small spaces", "the human heart",
    "the invention of the telephone", "black holes", "honey bees", "ocean tides", "plate tectonics", "time management",
    "public libraries", "the Roman Empire", "machine learning", "the immune system", "wind turbines", "supply and demand",
    "recycling plastic", "sleep and memory", "jazz music", "the Great Wall of China", "the Industrial Revolution",
    "healthy breakfasts", "remote work", "the theory of evolution", "DNA", "antibiotics", "rainforests", "inflation",
    "the Moon landing", "earthquakes", "renewable energy", "the stock market", "yoga", "marathon training",
    "how computers store numbers", "cloud computing", "databases", "the Renaissance", "climate change", "desert animals",
    "space telescopes", "ancient Egypt", "urban planning", "learning a new language", "budgeting for students",
    "the periodic table", "gravity", "nuclear fusion", "whale migration", "tea culture", "the Olympic Games",
    "lighthouse keepers", "steam engines", "glaciers", "mental health at work", "pottery", "mountain weather",
)  # fmt: skip
PEOPLE = (
    "Albert Einstein", "Marie Curie", "Isaac Newton", "Leonardo da Vinci", "Cleopatra", "Nelson Mandela", "Ada Lovelace",
    "Charles Darwin", "Galileo Galilei", "Wolfgang Amadeus Mozart", "Frida Kahlo", "Abraham Lincoln", "Julius Caesar",
    "Florence Nightingale", "Nikola Tesla", "Jane Austen", "Mahatma Gandhi", "Napoleon Bonaparte", "Amelia Earhart",
    "Pablo Picasso", "Queen Victoria", "Alan Turing", "Rosa Parks", "Johann Sebastian Bach", "Vincent van Gogh",
    "Mark Twain", "Aristotle", "Benjamin Franklin", "Louis Pasteur", "Martin Luther King", "Joan of Arc", "Plato",
)  # fmt: skip
COUNTRIES = (
    "Brazil", "Japan", "Kenya", "Norway", "Egypt", "Canada", "Peru", "Vietnam", "Portugal", "Greece", "Mexico", "Sweden",
    "Turkey", "Chile", "Morocco", "Poland", "Thailand", "Ireland", "Argentina", "Finland", "Nepal", "Cuba", "Austria",
    "Iceland", "Indonesia", "South Korea", "Nigeria", "New Zealand", "Switzerland", "Hungary", "Colombia", "Jordan",
)  # fmt: skip
THINGS = (
    "the telescope", "penicillin", "the light bulb", "paper", "the bicycle", "the compass", "the microscope", "dynamite",
    "the airplane", "the steam locomotive", "the zipper", "the thermometer", "the typewriter", "the refrigerator",
    "the camera", "the internet", "chocolate", "the piano", "the elevator", "glass", "rubber tyres", "the barometer",
)  # fmt: skip
QUESTIONS = (
    "What is the capital of {country}?", "When was {person} born?", "What is {person} best known for?",
    "Who invented {thing}?", "When was {thing} invented?", "What language is spoken in {country}?",
    "What is the largest city in {country}?", "Where did {person} grow up?", "How does {thing} work?",
    "What is the population of {country}?", "What currency does {country} use?", "Which ocean or sea is nearest to {country}?",
    "Where was {thing} first made?", "What are the main exports of {country}?", "Who influenced {person} the most?",
    "In which century did {person} live?", "Why is {thing} important?", "What was the most famous work of {person}?",
    "When did {country} become independent?", "Who was the first leader of {country}?", "What is the national dish of {country}?",
    "what year did {person} die", "how many people live in the capital of {country}", "who is credited with {thing}",
    "where is the highest mountain of {country}", "what is the origin of {thing}", "what is the flag of {country} like",
    "when did people start to study {topic}", "what is the main idea behind {topic}", "who first wrote about {topic}",
    "name three facts about {topic}", "what is the difference between {topic} and {other}",
)  # fmt: skip
WRITING = (
    "Write a short blog post about {topic}.", "Write an email to a colleague asking for help with a report on {topic}.",
    "Write a short story about a child who becomes fascinated by {topic}.", "Draft a speech for students about {topic}.",
    "Compose a product description for a book about {topic}.", "Write a letter to the editor arguing that {topic} deserves more attention.",
    "Write a review of a documentary about {topic}.", "Give me an outline of a talk about {topic}.",
    "Write a poem about {topic}.", "Write a dialogue between a teacher and a student about {topic}.",
    "You are {person}. Introduce yourself and tell me what you think of {topic}.",
    "Pretend to be a tour guide in {country} and describe the first stop of the day.",
    "Imagine you are a friendly shopkeeper. A customer asks you about {topic}. Answer in character.",
    "Act as a career adviser. I am interested in {topic}. What should I do?",
    "Play the role of a detective who has to solve a case that involves {thing}.",
)  # fmt: skip
EXPLAIN = (
    "Explain {topic} to a ten-year-old.", "What are the advantages and disadvantages of {topic}?",
    "Describe the most important events in the history of {topic}.", "List five common misconceptions about {topic} and correct them.",
    "How has {topic} changed everyday life?", "Compare {topic} with {other}.", "Why should anyone care about {topic}?",
    "Give a step by step introduction to {topic}.", "What are the key terms one has to know about {topic}? Define each.",
    "What would happen if nobody knew anything about {topic}?", "Summarise what scientists or historians disagree on about {topic}.",
    "How would {person} have explained {topic}?", "What skills are needed to work on {topic} professionally?",
    "Is {topic} more important than {other}? Give reasons for both sides.",
)  # fmt: skip
CODING = (
    "Write a Python function that {task}.", "Write a function in JavaScript that {task}.", "Write a C++ program that {task}.",
    "How do I write code in Python that {task}? Explain each step.", "Give me Python code and a few tests for a function that {task}.",
)  # fmt: skip
TASKS = (
    "reverses the words of a sentence", "counts the vowels in a string", "merges two sorted lists", "checks whether a number is prime",
    "returns the second largest element of a list", "finds all anagrams of a word in a list", "computes the factorial of a number",
    "removes duplicates from a list and keeps the order", "reads a CSV file and prints the sum of a column",
    "implements a stack with push and pop", "implements binary search", "sorts a dictionary by its values",
    "flattens a nested list", "rotates a matrix by ninety degrees", "converts Roman numerals to integers",
    "finds the longest common prefix of several strings", "implements a queue with two stacks", "validates an email address",
    "computes the greatest common divisor", "prints the first hundred square numbers", "counts word frequencies in a text file",
    "implements bubble sort", "finds the shortest path in a grid", "generates random passwords", "parses a date string",
    "computes a moving average", "checks whether brackets are balanced", "transposes a table", "encodes text with a Caesar cipher",
    "finds the median of a list", "simulates a coin toss experiment", "implements a linked list with insert and delete",
)  # fmt: skip
EXTRACTION = (
    "Extract the names of all places and people mentioned in the text below and return them as a list.\n\n{passage}",
    "Read the following text and answer with three bullet points that give its main claims.\n\n{passage}",
    "Give a title and five keywords for this text:\n\n{passage}",
    "Turn the text into a table with the columns subject and statement.\n\n{passage}",
    "Classify the tone of this text and give evidence from it.\n\n{passage}",
)  # fmt: skip
SUMMARISE = (
    "Summarize: {passage}", "Summarize: {passage}", "Summarise the following article in three sentences.\n\n{passage}",
    "Please summarize the text below.\n\n{passage}", "TL;DR of this text, please: {passage}",
)  # fmt: skip
RAG = (
    "{passage}\n\n{question}", "{passage}\n{question}", "Answer the question from the text.\n\n{passage}\n\nQuestion: {question}",
    "Use these documents to answer.\n\n{passage}\n\n{question}",
)  # fmt: skip
PASSAGE_QUESTIONS = (
    "What is {topic}?", "What does the text say about {topic}?", "Why is {topic} important according to the text?",
    "When did {topic} start?", "Who is mentioned in connection with {topic}?", "what is the main point about {topic}",
    "how does {topic} affect people", "where does {topic} matter most",
)  # fmt: skip
ARTICLE = (
    "Write a news article of three paragraphs about {topic} in {country}.",
    "Write an encyclopedia entry about {topic}.",
    "Write a newspaper report: a local school in {country} holds an event about {topic}. Quote two people.",
    "Write a magazine article about {person} and {topic}.",
)  # fmt: skip
FOLLOW_UPS = (
    "Make it shorter.", "Rewrite your answer as a list of bullet points.", "Now explain the most important point in more detail.",
    "Can you give an example?", "Rewrite it in a more formal tone.", "What could someone disagree with in your answer?",
    "Translate the first sentence into French.", "Add a short conclusion.", "What should I read or do next?",
)  # fmt: skip
RETRIEVAL_QUESTIONS = (
    *PASSAGE_QUESTIONS, "who is {topic}", "where is {topic}", "when was {topic} first mentioned", "what is {topic} known for",
    "who was involved in {topic}", "what happened to {topic}", "what year did {topic} begin", "how is {topic} described?",
    "what is the name of the place where {topic} comes from", "why did {topic} change?", "who came before {topic}?",
    "how many people know {topic}", "what role does {topic} play?", "what kind of thing is {topic}?",
)  # fmt: skip
TRANSLATE = ("Translate German to English: {german}", "Translate to English: {german}")
TRANSLATE_FOREIGN = (
    TRANSLATE[0], TRANSLATE[0], TRANSLATE[0], TRANSLATE[1], "Translate the following German sentence into English: {german}",
    "What does this German sentence mean in English? {german}", "Please translate this into English.\n\n{german}",
    "{german}\n\nTranslate the text above to English.",
)  # fmt: skip
GERMAN_SUBJECTS = (
    "Der Bürgermeister der kleinen Stadt", "Die junge Lehrerin aus Hamburg", "Mein älterer Bruder", "Eine Gruppe von Studenten",
    "Der neue Zug nach München", "Die alte Brücke am Fluss", "Das Museum für Technik", "Ein bekannter Schriftsteller",
    "Die Regierung", "Der Wetterbericht", "Unsere Nachbarin", "Das Orchester", "Der Verein", "Die meisten Kinder",
    "Ein Bauer aus dem Nachbardorf", "Die Firma", "Der Arzt im Krankenhaus", "Die Universität",
)  # fmt: skip
GERMAN_VERBS = (
    "hat am Montag beschlossen , {rest}", "wollte schon lange {rest2}", "musste wegen des Regens {rest2}",
    "plant im nächsten Jahr , {rest}", "wurde vor zwei Jahren gebeten , {rest}", "kann seit dem Sommer nicht mehr {rest2}",
    "versucht seit Wochen , {rest}", "durfte gestern zum ersten Mal {rest2}",
)  # fmt: skip
GERMAN_RESTS = (
    ("ein neues Haus", "bauen"), ("die Fenster der Schule", "öffnen"), ("den Besuchern die Ausstellung", "zeigen"),
    ("mehr Geld für Bücher", "ausgeben"), ("an einem Wettbewerb in Berlin", "teilnehmen"), ("die Straße vor dem Rathaus", "sperren"),
    ("eine Rede über die Zukunft der Stadt", "halten"), ("mit den Nachbarn über den Lärm", "sprechen"),
    ("das Wasser aus dem Keller", "pumpen"), ("die Ergebnisse der Untersuchung", "veröffentlichen"),
    ("im Wald nach seltenen Pflanzen", "suchen"), ("die Preise für Brot und Milch", "senken"),
    ("eine lange Reise durch Südamerika", "machen"), ("den Termin auf Freitag", "verschieben"),
)  # fmt: skip
GERMAN_ENDS = (
    "", " , obwohl viele dagegen waren", " , weil es keine andere Möglichkeit gab", " , sagte ein Sprecher am Abend",
    " , wie die Zeitung berichtete", " , und alle waren damit einverstanden", " , nachdem der Winter vorbei war",
    " , damit niemand zu spät kommt",
)  # fmt: skip
EDITS = (
    "Add a docstring to this function:\n\n{code}", "Rename the variables so that the code is easier to read.\n\n{code}",
    "Explain what this code does.\n\n{code}", "Add type hints to this code and return the complete code.\n\n{code}",
    "{code}\n\nAdd comments to every step and return the whole function.",
    "{code}\n\nChange the function so that it raises a ValueError for empty input.",
)  # fmt: skip
